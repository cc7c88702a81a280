"""A plugin of mypy: `evolve` takes the fields of its class by name, each with its type."""

from collections.abc import Callable

from mypy.nodes import ARG_NAMED_OPT, TypeInfo, Var
from mypy.plugin import MethodSigContext, Plugin
from mypy.typeops import map_type_from_supertype
from mypy.types import FunctionLike, Instance, Type, get_proper_type

BASE = "perdure.contracts.models.Value"


class TypedEvolve(Plugin):
    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        return _sign if fullname.endswith(".evolve") else None


def _sign(context: MethodSigContext) -> FunctionLike:
    given = get_proper_type(context.type)
    if not isinstance(given, Instance) or not given.type.has_base(BASE):
        return context.default_signature
    fields = _fields_of(given.type)
    return context.default_signature.copy_modified(
        arg_types=list(fields.values()),
        arg_names=list(fields),
        arg_kinds=[ARG_NAMED_OPT] * len(fields),
        ret_type=given,
    )


def _fields_of(info: TypeInfo) -> dict[str, Type]:
    fields: dict[str, Type] = {}
    for base in reversed(info.mro):
        if not base.fullname.startswith("pydantic."):
            for name, symbol in base.names.items():
                node = symbol.node
                if (
                    isinstance(node, Var)
                    and node.type
                    and not node.is_classvar
                    and not name.startswith(("_", "model_"))
                ):
                    fields[name] = map_type_from_supertype(node.type, info, base)
    return fields


def plugin(version: str) -> type[Plugin]:
    return TypedEvolve
