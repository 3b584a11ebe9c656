"""The paper's theory held against numbers: statements about softmax policies, estimates, and a law fitted to runs."""
