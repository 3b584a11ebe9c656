"""Tables from the records of a home: one frame, rendered as text, Markdown, LaTeX, HTML, CSV and JSON."""
