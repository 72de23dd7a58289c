"""Lets a CUDA-linked torchvision wheel be imported beside a CPU build of torch.

vLLM's CPU build asks for torchvision, and the package index serves the CUDA build of it, whose
compiled operators do not load. torchvision then fails while it registers the shape functions of
`nms` and `qnms`, because nobody has declared these operators. This hook declares them, without an
implementation, just before that registration, and only where the compiled operators are absent.

`tools/setup_serve.sh` copies this file into the serving environment and starts it from a `.pth`
file. It loads nothing by itself: torch is imported only when torchvision is.
"""

import importlib.abc
import importlib.machinery
import sys

_TARGET = "torchvision._meta_registrations"
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept_alive = []


class _DeclaringLoader(importlib.abc.Loader):
    """Declares the operators, then runs the module as its own loader would."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        import torch

        extension = sys.modules.get("torchvision.extension")
        if extension is not None and not extension._has_ops():
            library = torch.library.Library("torchvision", "DEF")
            for schema in _OPERATORS:
                library.define(schema)
            _kept_alive.append(library)  # the declarations go when the library object goes
        self._loader.exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module, the ordinary way, and wraps its loader."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != _TARGET:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeclaringLoader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
