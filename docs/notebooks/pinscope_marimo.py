import marimo

app = marimo.App()


@app.cell
def _():
    import pinscope

    question = {"quick": True, "sizes": "64KiB", "directions": "h2d", "repeats": 8}
    run = pinscope.run("bandwidth", **question, name="first look")
    run
    return pinscope, question, run


@app.cell
def _(run):
    run.charts["bandwidth"].figure
    return


@app.cell
def _(run):
    for finding in run.findings:
        print(finding.title, finding.advice, sep="\n→ ")
    return


@app.cell
def _(pinscope, question, run):
    again = pinscope.run("bandwidth", **question)
    pinscope.compare(run, again)
    return


@app.cell
def _(pinscope):
    import cupy
    import numpy

    batches = [numpy.zeros(2**20, "float32") for _ in range(20)]
    on_gpu = cupy.ndarray(2**20, "float32")
    with pinscope.trace("first step") as part:
        for batch in batches:
            on_gpu.set(batch)
    part.result
    return


if __name__ == "__main__":
    app.run()
