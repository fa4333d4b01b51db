"""The end of a run on text: write the run directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitrail.contract import Model
from vitrail.data.text.tokenizer import HF_CONFIG, hf_config
from vitrail.errors import RunError
from vitrail.files import write_text
from vitrail.run import directory
from vitrail.run.artefact import WEIGHTS, mark_finished
from vitrail.run.predictions import SUMMARY
from vitrail.training.closing import collect_facts, collect_skipped, make_result
from vitrail.training.recipe.text.tokens import text_settings, tokenizer_of
from vitrail.training.task import Outcome, Task
from vitrail.weights import tensor_files


def write_text_run(
    task: Task,
    recipe: str,
    outcome: Outcome,
    *,
    kind: str,
    scores: dict[str, Any],
    objective: str,
    facts: dict[str, Any],
    card: Callable[[dict[str, Any], dict[str, Any]], str],
) -> dict[str, Any]:
    """Write the files of a run and return its result; `facts` are what the report shows besides the usual."""
    model, settings = outcome.model, text_settings(task.settings)
    skipped = collect_skipped(task)
    result = make_result(task, recipe, outcome, scores, skipped)
    if task.world.is_rank_zero:
        spec = model.spec.model_dump(mode="json")
        task.config["kind"], task.config["objective"] = kind, objective
        task.config["model"] = {"name": "", "family": type(model.spec).__module__.rpartition(".")[2], "spec": spec}
        masked_rate = facts.get("masked_rate", 0.0)
        task.config["prepare"] = {"name": "text", "context": settings.context, "masked_rate": masked_rate}
        directory.write_config(task.run, task.config)
        num_params = sum(parameter.numel() for parameter in model.parameters())
        name = describe_size(model)
        general = collect_facts(task, model=name, num_params=num_params, notes=result["story"], skipped=skipped)
        state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        tensor_files.write_tensors(state, task.run / WEIGHTS)
        directory.write_json(task.run / HF_CONFIG, hf_config(tokenizer_of(task), settings.context))
        all_facts = {**general, **facts}
        write_text(card(all_facts, result), task.run / "README.md", RunError)
        directory.write_json(task.run / SUMMARY, {"facts": all_facts, "result": result})
        mark_finished(task.run, result)
    return {**result, "story": tuple(result["story"])}


def describe_size(model: Model) -> str:
    """A model in a few words."""
    spec: Any = model.spec
    depth = f"{spec.depth} + {spec.decoder_depth}" if hasattr(spec, "decoder_depth") else f"{spec.depth}"
    return f"{depth} blocks of width {spec.width}, {spec.heads} heads"
