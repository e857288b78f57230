"""The interface's own description, made whole: OpenAPI as FastAPI makes it leaves something out."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel

from aiperf_hpc.results.report.schema import attribute_docstrings
from aiperf_hpc.service.problem import MEDIA_TYPE, Problem
from aiperf_hpc.trial import Value

Document = dict[str, Any]

PROBLEM = {"schema": {"$ref": f"#/components/schemas/{Problem.__name__}"}}
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""What any request may be answered with, before it is looked what it asks for."""
OPEN = ("/healthz", "/docs")
FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""FastAPI's types for what is a problem here."""


def describe(app: FastAPI) -> None:
    """Make the application describe itself whole, once somebody asks."""
    made_by_fastapi = app.openapi

    def openapi() -> Document:
        if app.openapi_schema is None:
            _complete(made_by_fastapi())
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: Document) -> None:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas[Problem.__name__] = _plain(Problem, schemas)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _put_refusals(operation, guarded=path not in OPEN)
            operation["security"] = [*([{}] if method == "get" else []), {"token": []}]
    for name in FASTAPIS_OWN:
        schemas.pop(name, None)
    _describe_fields(schemas)
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of the service's --token-file. Reading on loopback needs none.",
        }
    }


def _plain(model: type[BaseModel], schemas: Document) -> Document:
    """Return a type's schema, and put those that it needs beside it."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    for name, other in schema.pop("$defs", {}).items():
        schemas.setdefault(name, other)
    return schema


def _put_refusals(operation: Document, *, guarded: bool) -> None:
    """Let every refusal be a problem, and name those that any request may meet."""
    responses = operation["responses"]
    for status in REFUSALS if guarded else ():
        responses.setdefault(str(status.value), {"description": status.description})
    for status, response in responses.items():
        if int(status) >= HTTPStatus.BAD_REQUEST:
            response["content"] = {MEDIA_TYPE: PROBLEM}


def _describe_fields(schemas: Document) -> None:
    """Describe fields by the docstrings of their attributes."""
    for model in set(_subclasses(Value)):
        schema = schemas.get(model.__name__)
        properties = (schema or {}).get("properties", {})
        if properties.keys() == model.model_fields.keys():
            for name, said in attribute_docstrings(model).items():
                properties[name].setdefault("description", said)
    for schema in schemas.values():
        for name, field in schema.get("properties", {}).items():
            if name in WORDS:
                field.setdefault("description", WORDS[name])


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        if each.__module__.startswith("aiperf_hpc"):
            yield each
            yield from _subclasses(each)


WORDS: Final = {
    "absent": "Why something is not told, by its name.",
    "accelerator_count": "How many accelerators it has.",
    "accelerator_memory_bytes": "Bytes of memory in use on its accelerators together.",
    "accelerators": "Its accelerators.",
    "architecture": "The processor's instruction set.",
    "base_mhz": "The base clock in MHz.",
    "batch_size": "Samples of a training step, on all ranks together.",
    "best_trial": "The trial with the best quality; null before an evaluation.",
    "cluster": "The name of the cluster.",
    "container_image": "The container's image; null outside of one.",
    "count": "How many there are.",
    "cpu": "The model of the processor.",
    "cpu_percent": "Processor time used, in percent; of one core for a replica, of all for a node.",
    "cpus_on_node": "Logical CPUs of the job on the node.",
    "dataset": "The name of the dataset.",
    "default_power_limit_watts": "The power limit from the factory, in watts.",
    "depth": "Layers on the longest path through the network.",
    "disk_written_rate": "Bytes a second that its block devices wrote.",
    "disks": "Its disks.",
    "driver": "The version of the driver.",
    "elapsed_seconds": "Seconds since the run's start.",
    "energy": "The energy, with its label.",
    "epoch_limit": "Epochs at most.",
    "epochs": "Epochs that were evaluated.",
    "error": "The share of validation samples that are wrong; null where there is none.",
    "fabric_received_rate": "Bytes a second that its ports received by verbs.",
    "fabric_sent_rate": "Bytes a second that its ports sent by verbs.",
    "file_systems": "The file systems of the run and its data.",
    "firmware": "The version of the firmware.",
    "gpus": "The accelerators of the job.",
    "graph": "The hash of its graph.",
    "host": "The host's name.",
    "hosts": "The hosts' names.",
    "hours": "The length that was asked for, in hours.",
    "id": "Its name.",
    "job": "The scheduler's job.",
    "jobs": "The scheduler's jobs.",
    "joules": "Energy in joules.",
    "kernel": "The kernel's version.",
    "kernel_size": "The size of inserted convolutions, where it was chosen.",
    "label": "Whether it is measured, estimated or absent.",
    "launcher": "What starts the replicas.",
    "learning_rate": "The peak of the learning rate.",
    "max_memory_clock_mhz": "The highest clock of the memory, in MHz.",
    "max_mhz": "The highest clock in MHz.",
    "memory": "The memory.",
    "memory_bytes": "Bytes of memory.",
    "memory_mhz": "The clock of the memory in MHz.",
    "mhz": "The clock of what computes, in MHz.",
    "model": "The model.",
    "morphisms": "What was done to the parent's network, in order.",
    "mount_point": "Where it is mounted.",
    "name": "Its name.",
    "network": "The network's ports.",
    "network_received_rate": "Bytes a second that its interfaces received.",
    "network_sent_rate": "Bytes a second that its interfaces sent.",
    "node_count": "How many nodes it has.",
    "nodes": "The nodes, or how many.",
    "now": "What was sampled last.",
    "numa": "The NUMA nodes.",
    "number": "Its number.",
    "operating_system": "The operating system.",
    "operations": "Analytical operations that are credited.",
    "ops": "The score: operations a second.",
    "options": "The options of the mount.",
    "parameters": "How many numbers are trained.",
    "parent": "The trial that it grew from; null for the initial network.",
    "partition": "The partition.",
    "parts": "The parts of the nodes whose energy is told apart.",
    "path": "The path.",
    "pci_address": "The address on the PCI bus.",
    "phase": "The phase of its round.",
    "points": "What there is at each time.",
    "preset": "The preset of the configuration.",
    "problems": "What is wrong with the records, a line each.",
    "process": "The process.",
    "processes_cpu_percent": "Percent of one core that the run's processes took.",
    "processes_memory_bytes": "Bytes of the run's processes' resident sets together.",
    "processors": "The processors.",
    "reason": "Why it is in its state; may be empty.",
    "regulated": "The regulated score: minus the logarithm of the error, times the score.",
    "remaining_seconds": "Seconds to the run's end.",
    "replica": "The replica.",
    "replicas": "The replicas by their numbers.",
    "rotational": "Whether it turns.",
    "round": "The round of its replica, counted from 1.",
    "run_id": "The run's own name.",
    "scheduler": "The scheduler.",
    "score": "The score so far.",
    "seconds": "Seconds.",
    "series": "Points in the course of time.",
    "sockets": "How many sockets there are.",
    "source": "What is mounted.",
    "sources": "What told it.",
    "state": "Its state.",
    "swap_bytes": "Bytes of swap space.",
    "times": "How often.",
    "to_seconds": "Seconds from the run's start to the end of the stretch.",
    "total_bytes": "Its size in bytes.",
    "train_samples": "Training samples that were executed.",
    "trials": "How many trials there are.",
    "type": "Its type.",
    "uuid": "Its UUID.",
    "validation_samples": "Validation samples that were executed.",
    "vendor": "The vendor.",
    "versions": "Versions of what it works with, by name.",
    "workload": "The workload.",
}
"""Descriptions by the fields' names."""
