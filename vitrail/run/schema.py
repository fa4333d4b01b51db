"""What the files of a run may hold: a schema for each, held to before anything is built from a file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter

from vitrail.documents import Document
from vitrail.metric.summary import Summary

MAX_SIDE = 16_384  # of an image
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Line = Annotated[str, StringConstraints(max_length=10_000)]
Name = Annotated[str, StringConstraints(max_length=200)]
Fields = dict[Name, Any]
Rates = dict[Name, Number | None]


class Plan(Document, extra="allow"):
    """How a model is trained on this machine: `decisions.plan` of config.yaml."""

    bfloat16: bool
    channels_last: bool = True
    fused_attention: bool = True
    muon: Literal["float32", "bfloat16"] = "bfloat16"
    batch_size: Annotated[int, Field(ge=1, le=2**24)]
    accumulate: Annotated[int, Field(ge=1, le=2**24)]
    compile: bool
    samples_per_second: Number = 0.0
    images_per_second: Number = 0.0
    evaluated_per_second: Number = 0.0
    gigabytes: Number = 0.0
    summary: Line = ""


class Student(Document):
    """Whether a student is tried: `decisions.student`."""

    taken: bool
    notes: list[Line]


class Decisions(Document, extra="allow"):
    """What a run or one of its stages has chosen; other keys, of other versions, are not read."""

    scanned: bool = True
    plan: Plan | None = None
    finished: Count = 0
    size: Annotated[int, Field(ge=0, le=100)] = 0
    image_size: Annotated[list[Annotated[int, Field(ge=1, le=MAX_SIDE)]], Field(min_length=1, max_length=3)] | None = (
        None
    )
    model: Name = ""
    num_labelled: Count = 0
    labelled_epochs: Number = 0.0
    student: Student | None = None
    features_in_bfloat16: bool = False


class Request(Document, extra="allow"):
    """What was asked for; the recipe's own `Spec` has checked its settings."""

    data: Line = ""
    recipe: Name = ""
    target: Line | None = None
    data_fingerprint: Name = ""
    settings: Fields | None = None


class StoredModel(Document):
    """The model of a finished run."""

    name: Name = ""
    family: Name
    spec: Fields


class Config(Document):
    """config.yaml."""

    request: Request
    command: str = ""
    decisions: Decisions = Decisions()
    stages: dict[Name, Decisions] | None = None
    kind: Name = "classification"
    objective: Name = "classify"
    model: StoredModel | None = None
    prepare: Fields | None = None
    preprocess: Fields | None = None
    """What is called `prepare` since 0.3."""
    masking: Fields | None = None


class Result(Document):
    """result.json; `val` and `test` hold the scores of the kind of run."""

    recipe: Name
    steps: Count
    seconds: Number
    val: Fields | None
    test: Fields | None
    story: list[str]
    seconds_by_phase: Rates | None = None
    images_per_second: Rates | None = None
    samples_per_second: Rates | None = None
    folds: Fields | None = None


class Facts(Document, extra="allow"):
    """What the report shows besides scores; a kind adds its own."""

    title: str
    model: str
    params: Count
    num_train: Count
    skipped: dict[str, str] | None = None
    own_validation: bool = False
    command: str = ""
    machine: str = ""
    versions: dict[Name, str] | None = None
    story: str
    findings: list[list[str | None]] | None


class Account(Document, extra="allow"):
    """account.json of any kind of run."""

    facts: Facts
    result: Result


class ClassifierAccount(Account, extra="forbid"):
    """account.json of a classifier."""

    val: Summary | None = None
    test: Summary | None = None


class Folds(Document):
    """folds.json."""

    k: Count
    scores: list[Number]
    mean: Number
    spread: Number
    n: Count
    suspects: Count
    seconds: Number


class FoldNumbers(Document):
    """folds/parts.json: the fold of each image."""

    folds: Count
    data: Name
    parts: list[Count]


CONFIG_FILE = TypeAdapter(Config)
RESULT_FILE = TypeAdapter(Result)
LABELS_FILE: TypeAdapter[list[str]] = TypeAdapter(
    Annotated[list[Annotated[str, StringConstraints(strict=True, max_length=10_000)]], Field(max_length=10**6)]
)
ACCOUNT_FILE = TypeAdapter(Account)
CLASSIFIER_ACCOUNT_FILE = TypeAdapter(ClassifierAccount)
FOLDS_FILE = TypeAdapter(Folds)
FOLD_NUMBERS_FILE = TypeAdapter(FoldNumbers)
METRICS_LINE: TypeAdapter[dict[str, float | None]] = TypeAdapter(dict[Name, Number | None])
STATE_FILE: TypeAdapter[dict[str, Any]] = TypeAdapter(Fields)
SCALING_FILE: TypeAdapter[dict[str, Any]] = TypeAdapter(Fields)
MANIFEST_FILE: TypeAdapter[dict[str, str]] = TypeAdapter(
    dict[Annotated[str, StringConstraints(pattern=r"^[\w.-]+$", max_length=200)], Name]
)
