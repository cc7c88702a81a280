"""Workflows call activities by the signatures in `perdure.workflows.activities`; these are the activities' own."""

import inspect
import pkgutil
from importlib import import_module

from perdure import activities
from perdure.activities.parts import DEFINITION
from perdure.workflows.activities import Activities


def implemented() -> dict[str, inspect.Signature]:
    modules = [import_module(info.name) for info in pkgutil.walk_packages(activities.__path__, "perdure.activities.")]
    kinds = {kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)}
    methods = [method for kind in kinds for method in vars(kind).values() if hasattr(method, DEFINITION)]
    return {method.__name__: inspect.signature(method) for method in methods}


def test_workflows_call_the_activities_as_they_are() -> None:
    called = {name: method for name, method in vars(Activities).items() if hasattr(method, DEFINITION)}
    assert {name: inspect.signature(method) for name, method in called.items()} == implemented()
