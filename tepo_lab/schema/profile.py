"""A profile: what an arm is trained on and with, at one scale."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from tepo_lab.schema.base import NUMBER, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Strict

#: Longest name: a run's folder is called ARM-PROFILE-sSEED-ID, and a file system takes 255 bytes.
LONGEST_NAME = 100


def not_too_long(name: str) -> str:
    """The name as it is. Raises `ValueError` for one of more than `LONGEST_NAME` characters."""
    if len(name) > LONGEST_NAME:
        raise ValueError(f"a name has at most {LONGEST_NAME} characters, this one has {len(name)}")
    return name


#: Names that may become part of a folder's name.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$"), AfterValidator(not_too_long)]

#: Model paths that begin so name a checkpoint folder inside the package.
_PACKAGE = "package:"

#: More training steps than any run takes; a number beyond is a slip.
MAX_STEPS = 1_000_000

Steps = Annotated[int, Field(gt=0, le=MAX_STEPS), NUMBER]
Seed = Annotated[int, Field(ge=0, lt=2**32), NUMBER]


class Origin(Strict):
    """What `tepo-lab model import` makes a model's checkpoint folder from: a GGUF file inside a Python package."""

    package: str = Field(description="as pip takes it: name==version")
    file: str = Field(description="name of the GGUF file inside the package")
    sha256: str = Field(description="of the GGUF file")
    license: str


class Sizes(Strict):
    """A model's sizes as its config.json has them, for memory estimates where that file is not at hand."""

    parameters: PositiveInt
    layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    vocabulary: PositiveInt


class ModelSpec(Strict):
    """A causal language model of transformers, by hub name or local folder."""

    name: Name
    path: str = Field(
        min_length=1, description="hub name, local folder, or 'package:nano' for the model inside the package"
    )
    revision: str | None = None
    sha256: str | None = Field(default=None, min_length=64, description="of model.safetensors; checked when given")
    dtype: Literal["float32", "bfloat16"] = "float32"
    gradient_checkpointing: bool = False
    trust_remote_code: bool = Field(
        default=False, description="whether Python code that comes with the model may run: only for authors you trust"
    )
    system_role: bool = Field(
        default=True, description="whether its chat template takes a system message; else that text begins the user's"
    )
    origin: Origin | None = Field(default=None, description="what `tepo-lab model import` makes the folder from")
    sizes: Sizes | None = None

    @property
    def is_packaged(self) -> bool:
        """Whether the model is one inside the package."""
        return self.path.startswith(_PACKAGE)

    @property
    def folder(self) -> Path:
        """The model's folder on this machine; it does not exist for a model of the hub."""
        if self.is_packaged:
            return Path(str(resources.files("tepo_lab"))) / "assets" / self.path.removeprefix(_PACKAGE)
        return Path(self.path).expanduser()


class Columns(Strict):
    """The columns of a data set; a dotted name reaches inside one ("reward_model.ground_truth")."""

    prompt: str = "problem"
    answer: str = "answer"
    id: str | None = "id"
    answer_pattern: str | None = Field(
        default=None, description="regular expression whose one group is the answer inside its column; the last counts"
    )
    tolerance: str | None = Field(default=None, description="column with how far a number may be from the answer")

    @model_validator(mode="after")
    def _one_group(self) -> Columns:
        if self.answer_pattern is not None:
            try:
                groups = re.compile(self.answer_pattern).groups
            except re.error as error:
                raise ValueError(f"answer_pattern is no regular expression ({error})") from None
            if groups != 1:
                raise ValueError(f"answer_pattern needs one group (...) around the answer, and has {groups}")
        return self


class ChainData(Strict):
    """The embedded task: a running total modulo 100 (`tepo_lab.tasks.chain`)."""

    kind: Literal["chain"]
    split: Literal["train", "validation", "test"] = "train"
    terms: tuple[PositiveInt, ...] = Field(min_length=1, description="numbers of terms K, drawn uniformly")
    operators: tuple[Literal["+-", "+-*"], ...] = Field(default=("+-*",), min_length=1)
    times_share: PositiveFloat = Field(default=1.0, description="share of * relative to each other operator")
    seed: Seed = 0


class DatasetData(Strict):
    """Problems by hub name through `datasets`, or from a local JSONL or Parquet file or folder."""

    kind: Literal["dataset"]
    hub: str | None = None
    revision: str | None = None
    subset: str | None = None
    split: str = "train"
    path: str | None = Field(default=None, description="file, or folder: of its files those named after the split")
    skip: NonNegativeInt = Field(default=0, description="rows left out at the beginning")
    take: PositiveInt | None = Field(default=None, description="rows taken after those; else all")
    columns: Columns = Columns()

    @model_validator(mode="after")
    def _has_a_place(self) -> DatasetData:
        if self.hub is None and self.path is None:
            raise ValueError("give hub (a data set's name) or path (a local file or folder)")
        return self


Data = Annotated[ChainData | DatasetData, Field(discriminator="kind")]

#: Whether answers are compared as mathematics, or as text and numbers alone.
GraderKind = Literal["exact", "symbolic"]


def usual_grader(data: Data) -> GraderKind:
    """The grader of a data set's answers where nothing else is asked for."""
    return "exact" if isinstance(data, ChainData) else "symbolic"


class PromptSpec(Strict):
    """How a problem becomes a prompt: a template, and what replaces parts of it."""

    template: Literal["plain", "boxed_chat", "dapo_answer"] = "plain"
    system: str | None = Field(default=None, description="system message in place of the template's; '' for none")
    user: str | None = Field(default=None, description="user's message in place of the template's; holds {problem}")
    answer: Literal["boxed", "answer_line"] | None = Field(
        default=None, description=r"where the answer is looked for: the last \boxed{}, or the last line 'Answer: ...'"
    )

    @model_validator(mode="after")
    def _states_the_problem(self) -> PromptSpec:
        if self.user is not None and "{problem}" not in self.user:
            raise ValueError("prompt.user must hold {problem}, where the problem's text goes")
        return self


class Benchmark(Strict):
    """A held-out set with its problems, samples and decoding. Temperature 0 is greedy."""

    label: str
    data: Data
    problems: Annotated[int, Field(gt=0, le=100_000), NUMBER]
    samples: PositiveInt = 1
    temperature: NonNegativeFloat = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    prompt: PromptSpec | None = Field(default=None, description="the benchmark's own prompt; else the run's")
    grader: GraderKind | None = Field(
        default=None, description="else exact for the embedded task and symbolic for data sets"
    )

    @model_validator(mode="after")
    def _greedy_once(self) -> Benchmark:
        if self.temperature == 0 and self.samples != 1:
            raise ValueError("greedy decoding gives one answer every time: samples must be 1 at temperature 0")
        return self


class Suite(Strict):
    """The benchmarks, in the order of the columns."""

    name: Name
    max_new_tokens: PositiveInt
    seed: Seed = 0
    benchmarks: dict[str, Benchmark] = Field(min_length=1)


class Rollout(Strict):
    """How responses are sampled in training."""

    engine: Literal["transformers", "vllm"] = "transformers"
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_prompt_tokens: PositiveInt = 2048
    max_new_tokens: PositiveInt
    sequences_per_batch: PositiveInt = Field(default=512, description="sequences decoded at once")
    max_sampler_mismatch: PositiveFloat = Field(
        default=0.05,
        description="mean difference in nats between the sampler's log-probabilities and the trainer's, beyond which "
        "the run is marked suspect; 0.05 suits bfloat16, 0.001 float32",
    )


Beta = Annotated[float, Field(ge=0, lt=1), NUMBER]


class Trainer(Strict):
    """One reinforcement-learning step: rollout, reward, advantages, updates; and how many of them."""

    steps: Steps
    prompts_per_step: PositiveInt = 64
    group_size: Annotated[int, Field(gt=1, le=100_000), NUMBER] = 8
    mini_batch_prompts: PositiveInt = 16
    epochs: PositiveInt = 1
    dynamic_sampling: Literal["drop", "refill", "off"] = "drop"
    max_generation_batches: PositiveInt = 10
    learning_rate: PositiveFloat
    warmup_steps: NonNegativeInt = 0
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    micro_batch_tokens: PositiveInt | None = Field(
        default=None, description="tokens (with padding) in one forward pass"
    )
    gradient_ratio_every: NonNegativeInt = Field(
        default=0, description="steps between penalty/policy gradient ratios; 0: never"
    )
    tokens_every: NonNegativeInt = Field(
        default=0, description="steps between token files besides the last step's; 0: none"
    )
    checkpoint_every: PositiveInt = 5
    keep_checkpoints: PositiveInt = 2
    evaluate_at: tuple[NonNegativeInt, ...] = Field(default=(), description="steps besides the last to evaluate at")

    @model_validator(mode="after")
    def _divides(self) -> Trainer:
        if self.prompts_per_step % self.mini_batch_prompts:
            raise ValueError(
                f"prompts_per_step ({self.prompts_per_step}) must be a multiple of mini_batch_prompts "
                f"({self.mini_batch_prompts})"
            )
        return self


class Resources(Strict):
    """What one run takes. `device: auto` is the GPU where the run has one, else the CPU."""

    cpus: PositiveFloat = 1
    gpus: NonNegativeFloat = 0
    threads: Annotated[int, Field(gt=0, le=1024), NUMBER] = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    learners: PositiveInt = Field(
        default=1, description="processes that share a run's updates, each with its share of the GPUs"
    )
    placement: Literal["colocated", "separate"] = Field(
        default="colocated", description="whether the rollout engine works on the learners' GPUs or on others"
    )
    gpu_memory_gb: PositiveFloat | None = Field(
        default=None, description="memory of one GPU, in 1e9 bytes; plans check it"
    )
    sampler_memory_share: Annotated[float, Field(gt=0, lt=1), NUMBER] = Field(
        default=0.6, description="share of a GPU's memory that a colocated vLLM may plan with while it samples"
    )
    max_retries: NonNegativeInt = Field(
        default=3, description="times a run is started again after a failure of the machine"
    )

    @model_validator(mode="after")
    def _has_its_device(self) -> Resources:
        if self.device == "cuda" and self.gpus == 0:
            raise ValueError("device cuda takes gpus: 1 (or a share of one); without a GPU, set device: cpu")
        return self

    @property
    def is_on_gpu(self) -> bool:
        """Whether the run computes on a GPU."""
        return self.device != "cpu" and self.gpus > 0


class Estimates(Strict):
    """Declared costs, used by the planner until finished runs give measured ones."""

    seconds_per_step: PositiveFloat
    evaluation_seconds: PositiveFloat
    gpu_memory_gb: NonNegativeFloat = 0.0


class ProfileInfo(Strict):
    """What a profile is called and the choices its arms take from it."""

    name: Name
    label: str
    tepo_kl_coef: NonNegativeFloat = Field(description="beta of the TEPO arms for this model")
    estimates: Estimates
