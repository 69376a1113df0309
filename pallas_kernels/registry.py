"""All cases of all ops."""

import importlib
import importlib.util
import pkgutil
from types import ModuleType

import pallas_kernels
from pallas_kernels.cases import Case


def all_cases(package: ModuleType = pallas_kernels) -> tuple[Case, ...]:
    """The CASES of each of a package's op folders, in the order of the folders' names.

    A folder without cases.py has none; a cases.py that does not import is an error.
    """
    found: list[Case] = []
    for folder in sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.ispkg):
        name = f"{package.__name__}.{folder}.cases"
        if importlib.util.find_spec(name) is not None:
            found += importlib.import_module(name).CASES
    return tuple(found)
