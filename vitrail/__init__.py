"""Vitrail, the workbench for Vision Transformers. Public names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.catalogue import create_model, list_models
    from vitrail.estimator import VitClassifier
    from vitrail.inspection.explanation import explain
    from vitrail.run.artefact import load
    from vitrail.verbs.bench import bench
    from vitrail.verbs.check import check
    from vitrail.verbs.claims import claims, run_claims
    from vitrail.verbs.compare import compare
    from vitrail.verbs.convert import convert, save_weights
    from vitrail.verbs.demo import demo
    from vitrail.verbs.evaluate import evaluate
    from vitrail.verbs.export import export
    from vitrail.verbs.figures import figures
    from vitrail.verbs.models import models
    from vitrail.verbs.predict import predict
    from vitrail.verbs.scaling import scaling
    from vitrail.verbs.search import search
    from vitrail.verbs.serve import serve
    from vitrail.verbs.train import find_lr, train
    from vitrail.verbs.transfer import transfer

__version__ = "0.3.0"
__all__ = [
    "VitClassifier",
    "bench",
    "check",
    "claims",
    "compare",
    "convert",
    "create_model",
    "demo",
    "evaluate",
    "explain",
    "export",
    "figures",
    "find_lr",
    "list_models",
    "load",
    "models",
    "predict",
    "run_claims",
    "save_weights",
    "scaling",
    "search",
    "serve",
    "train",
    "transfer",
]

MODULES = {
    "VitClassifier": "vitrail.estimator",
    "create_model": "vitrail.catalogue",
    "list_models": "vitrail.catalogue",
    "bench": "vitrail.verbs.bench",
    "check": "vitrail.verbs.check",
    "claims": "vitrail.verbs.claims",
    "compare": "vitrail.verbs.compare",
    "convert": "vitrail.verbs.convert",
    "demo": "vitrail.verbs.demo",
    "evaluate": "vitrail.verbs.evaluate",
    "explain": "vitrail.inspection.explanation",
    "export": "vitrail.verbs.export",
    "figures": "vitrail.verbs.figures",
    "find_lr": "vitrail.verbs.train",
    "models": "vitrail.verbs.models",
    "predict": "vitrail.verbs.predict",
    "run_claims": "vitrail.verbs.claims",
    "save_weights": "vitrail.verbs.convert",
    "scaling": "vitrail.verbs.scaling",
    "search": "vitrail.verbs.search",
    "serve": "vitrail.verbs.serve",
    "load": "vitrail.run.artefact",
    "train": "vitrail.verbs.train",
    "transfer": "vitrail.verbs.transfer",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        from vitrail.plug import import_from

        return import_from(MODULES[name], name)
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
