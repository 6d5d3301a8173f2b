"""``naspipe doctor``: versions and devices of this machine, and missing packages."""

from __future__ import annotations

import importlib.util

import typer

from naspipe.environment import describe_environment

_EXTRAS = {
    "nni": ("nni", "search spaces of NNI: pip install 'naspipe[nni]'"),
    "text": ("tokenizers", "subwords, translation and BLEU: pip install 'naspipe[text]'"),
    "vision": ("torchvision", "data sets of torchvision: pip install 'naspipe[vision]'"),
}


def doctor() -> None:
    """Show versions, devices, threads and backends, and what is missing."""
    from naspipe.cli.output import say

    found = describe_environment()
    missing = [name for name, version in found["packages"].items() if version is None]
    say(f"Python       {found['python']} on {found['platform']}")
    for name, version in found["packages"].items():
        say(f"{name:<13}{version or 'MISSING'}")
    cpu = found["cpu"]
    say(f"CPU          {cpu['cores']} cores, {cpu['machine']}, kernels for {cpu['capability']}")
    say(f"Threads      {found['threads']} in this process; runs use training.threads")
    gpus = ", ".join(found["gpus"]) or "none seen by torch"
    say(f"GPUs         {gpus}; CUDA {found['cuda'] or 'not in this build of torch'}")
    say(f"Backends     {', '.join(found['backends']) or 'none'}")
    for extra, (module, use) in _EXTRAS.items():
        state = "installed" if importlib.util.find_spec(module) else f"not installed; {use}"
        say(f"Extra        {extra}: {state}")
    if missing:
        typer.echo(f"Missing      {', '.join(missing)}: pip install naspipe again", err=True)
        raise typer.Exit(1)
    say("Everything that NASPipe needs is installed.")
