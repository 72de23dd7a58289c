"""An unexpected exception is no verdict: it never exits with 1, which means a failed gate."""

from __future__ import annotations

import pytest

from clefq.cli import main


@pytest.mark.parametrize("error", [RuntimeError("\ud800 odd"), MemoryError(), KeyError("x")])
def test_crashes_exit_70(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise error

    monkeypatch.setattr(main, "app", app)
    with pytest.raises(SystemExit) as stopped:
        main.run()
    assert stopped.value.code == main.CRASHED == 70
    assert "no verdict" in capsys.readouterr().err.splitlines()[0]
