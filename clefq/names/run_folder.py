"""The run folder and what its names mean; a published folder, which holds the same of one model.

`models/<variant>/`, `sets/<set>/`, `predictions/<set>/<variant>.parquet`, `report/<set>/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clefq.errors import InputError
from clefq.store.sets import MANIFEST_FILE, Role, SetManifest, read_manifest

BASELINE = "bf16"
EVIDENCE = "evidence"  # of a published folder
REPORT = "parity.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder and the names in it.

    Attributes:
        root: The folder.
    """

    root: Path

    @classmethod
    def find(cls, root: Path | None) -> RunFolder:
        """The run folder at `root`, or the current folder if it is one.

        Raises:
            InputError: The folder has neither `models/` nor `predictions/`.
        """
        folder = root if root is not None else Path.cwd()
        if not (folder / "models").is_dir() and not (folder / "predictions").is_dir():
            raise InputError(
                f"{folder} is not a run folder (no models/ or predictions/ in it).",
                fix="change into one, or give --run DIR (`clefq demo --out DIR` makes one).",
            )
        return cls(folder)

    def model(self, variant: str) -> Path:
        """The checkpoint folder of a variant."""
        return self.root / "models" / variant

    def set_folder(self, name: str) -> Path:
        """The folder of a set."""
        return self.root / "sets" / name

    def predictions(self, set_name: str, variant: str) -> Path:
        """The predictions file of a variant on a set."""
        return self.root / "predictions" / set_name / f"{variant}.parquet"

    def report(self, set_name: str) -> Path:
        """The report folder of a set."""
        return self.root / "report" / set_name

    def variants(self) -> list[str]:
        """Names under `models/`, sorted."""
        return _names(self.root / "models")

    def sets(self) -> list[str]:
        """Names under `sets/`, sorted."""
        return _names(self.root / "sets")


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def find_run(root: Path | None) -> RunFolder | None:
    """The run folder, or None where the user works without one.

    Raises:
        InputError: `root` is given and is none.
    """
    try:
        return RunFolder.find(root)
    except InputError:
        if root is not None:
            raise
        return None


def find_run_folder(folder: Path | None) -> RunFolder:
    """The run folder given, or the current one.

    Raises:
        InputError: It is none.
    """
    try:
        return RunFolder.find(folder)
    except InputError as error:
        raise InputError(
            error.message, fix="give one (`clefq demo --out DIR` makes one), or change into it."
        ) from error


def find_set(name: str, run: RunFolder | None = None) -> Path:
    """Finds a set folder.

    Args:
        name: A set of `run`, or a folder; `./NAME` is always the folder.
        run: The run folder, if there is one.

    Raises:
        InputError: Neither.
    """
    if run is not None and name in run.sets():
        return run.set_folder(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    known = f" (sets here: {', '.join(run.sets())})" if run is not None and run.sets() else ""
    raise InputError(
        f"no set {name}{known}.",
        fix="give its folder, or change into the run folder that has it (--run DIR); "
        "`clefq build eval NAME_OR_FILE --out DIR` builds one.",
    )


def only_set(run: RunFolder, role: Role, option: str) -> Path:
    """The run folder's only set of a role, where the user named none.

    Args:
        run: The run folder.
        role: `calibration` or `eval`.
        option: Option that names one.

    Raises:
        InputError: There is none, or there are several; lists them.
    """
    found = [name for name in run.sets() if manifest_of(run.set_folder(name)).role == role]
    if len(found) == 1:
        return run.set_folder(found[0])
    if not found:
        raise InputError(
            f"{run.root} has no {role} set.",
            fix=f"build one with `clefq build {role} NAME_OR_FILE`, or give {option} SET.",
        )
    raise InputError(
        f"{run.root} has several {role} sets: {', '.join(found)}.",
        fix=f"choose one: {option} {found[0]}",
    )


def manifest_of(set_path: Path) -> SetManifest:
    """A set's manifest; quick, as its records are not hashed."""
    return read_manifest(set_path / MANIFEST_FILE)


def own_sets(run: RunFolder) -> dict[str, Path]:
    """The run's sets by the name in their manifest, which predictions and reports go by.

    Raises:
        InputError: Two folders hold sets of one name.
    """
    found: dict[str, Path] = {}
    for folder in map(run.set_folder, run.sets()):
        name = manifest_of(folder).name
        if name in found:
            raise InputError(
                f"{found[name]} and {folder} both hold a set called {name}.",
                fix="remove one, or build it anew with another name.",
            )
        found[name] = folder
    return found


def predicted_sets(run: RunFolder) -> list[str]:
    """Names of the sets that the run folder has predictions of."""
    folder = run.root / "predictions"
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if any(path.glob("*.parquet")))


def known_variants(run: RunFolder, set_name: str) -> list[str]:
    """Variants with a checkpoint or with predictions on a set, sorted."""
    predicted = (run.root / "predictions" / set_name).glob("*.parquet")
    files = {path.stem for path in predicted if not path.name.startswith(".")}
    return sorted(files | set(run.variants()))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint's evidence lies.

    Attributes:
        variant: Its name in the reports.
        model: Its folder.
        root: Folder that holds `sets/`, `predictions/` and `report/`, or None.
        reports: The `parity.json` files about it.
    """

    variant: str
    model: Path
    root: Path | None
    reports: tuple[Path, ...]


def find_place(folder: Path | None, variant: str | None) -> Place:
    """Finds a checkpoint and its reports.

    Args:
        folder: Run folder or published folder; None for the current one.
        variant: Name of the variant, or None where there is only one.

    Raises:
        InputError: Nothing there, nothing judged, or several variants and no name.
    """
    root = Path.cwd() if folder is None else folder
    if is_published(root):
        return _published_place(root, variant)
    run = find_run_folder(folder)
    name = variant or only_variant(judged_variants(run), run.root)
    if not run.model(name).is_dir():
        raise InputError(
            f"{run.root} has no checkpoint {name}.",
            fix=f"there are: {', '.join(run.variants()) or 'none'}.",
        )
    found = tuple(sorted(run.root.glob(f"report/*/{name}/{REPORT}")))
    if not found:
        raise InputError(
            f"{run.root} has no report about {name}.",
            fix="judge it: clefq parity --baseline bf16",
        )
    return Place(name, run.model(name), run.root, found)


def _published_place(folder: Path, variant: str | None) -> Place:
    root = folder / EVIDENCE
    found = tuple(sorted(root.glob(f"report/*/{variant or '*'}/{REPORT}")))
    name = variant or only_variant(sorted({path.parent.name for path in found}), folder)
    return Place(name, folder, root, found)


def is_published(folder: Path) -> bool:
    """Whether a folder is one that `clefq bundle --publish` made."""
    return (folder / "config.json").is_file() and (folder / EVIDENCE / "report").is_dir()


def judged_variants(run: RunFolder) -> list[str]:
    """Variants with a checkpoint and a report, sorted."""
    return [name for name in reported_variants(run) if name in run.variants()]


def reported_variants(run: RunFolder) -> list[str]:
    """Variants with a report, sorted: answers may have come without the checkpoint."""
    return sorted({path.parent.name for path in run.root.glob(f"report/*/*/{REPORT}")})


def only_variant(names: Sequence[str], where: Path) -> str:
    """The one variant.

    Raises:
        InputError: There is none, or there are several.
    """
    if len(names) == 1:
        return names[0]
    if not names:
        raise InputError(
            f"{where} has no judged checkpoint.", fix="judge one: clefq parity --baseline bf16"
        )
    raise InputError(
        f"{where} has several judged checkpoints: {', '.join(names)}.", fix="give --variant NAME."
    )
