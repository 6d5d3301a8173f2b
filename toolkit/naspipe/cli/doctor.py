"""``naspipe doctor``: what this machine has, and what is missing."""

from __future__ import annotations

import importlib.util

import typer

from naspipe.environment import describe_environment

_EXTRAS = {
    "nni": ("nni", "search spaces of NNI: pip install 'naspipe[nni]'"),
    "text": ("tokenizers", "subwords, translation and BLEU: pip install 'naspipe[text]'"),
    "vision": ("torchvision", "data sets of torchvision: pip install 'naspipe[vision]'"),
}


def show_doctor() -> bool:
    """Print versions, devices, threads and backends; tell whether everything needed is there."""
    found = describe_environment()
    missing = [name for name, version in found["packages"].items() if version is None]
    typer.echo(f"Python       {found['python']} on {found['platform']}")
    for name, version in found["packages"].items():
        typer.echo(f"{name:<13}{version or 'MISSING'}")
    cpu = found["cpu"]
    typer.echo(f"CPU          {cpu['cores']} cores, {cpu['machine']}, kernels for {cpu['capability']}")
    typer.echo(f"Threads      {found['threads']} in this process; runs use training.threads")
    gpus = ", ".join(found["gpus"]) or "none seen by torch"
    typer.echo(f"GPUs         {gpus}; CUDA {found['cuda'] or 'not in this build of torch'}")
    typer.echo(f"Backends     {', '.join(found['backends']) or 'none'}")
    for extra, (module, use) in _EXTRAS.items():
        state = "installed" if importlib.util.find_spec(module) else f"not installed; {use}"
        typer.echo(f"Extra        {extra}: {state}")
    if missing:
        typer.echo(f"Missing      {', '.join(missing)}: pip install naspipe again", err=True)
    else:
        typer.echo("Everything that NASPipe needs is there.")
    return not missing
