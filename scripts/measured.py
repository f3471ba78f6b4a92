"""The measuring scripts' common part in Python: turns, the CPU time of programs, the results of runs, and how numbers are shown."""
import json, os, re, resource, subprocess, sys, time
from statistics import median, quantiles

WORK, BLKMQ = os.environ.get("WORK"), os.environ.get("BLKMQ")


def servers():
    """The processes of the servers that scripts/record has started, by name."""
    return {name: int(pid) for name, pid in (word.split("=") for word in os.environ["SERVERS"].split())}


def alternate(sides, run):
    """The results of `run(side)`, a list for each side, of ROUNDS rounds. Every other round goes backwards, so that each side
    comes before another as often as after it."""
    results = {side: [] for side in sides}
    for turn in range(int(os.environ["ROUNDS"])):
        for side in reversed(results) if turn % 2 else results:
            results[side].append(run(side))
    return results


def cpu(pid):
    """CPU seconds of a process so far, by Linux's clock for it, whose number clock_getcpuclockid(3) makes of the process's."""
    return time.clock_gettime(~pid << 3 | 2)


def timed(command):
    """Runs a program to its end. Its output, and the CPU seconds of all of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if found.returncode != 0:
        sys.exit(f"{' '.join(command)} failed")
    return found.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def output(command):
    return timed(command)[0]


def report(text):
    """The report of fio or of `blkmq bench --json`. fio may write lines before it."""
    return json.loads(text[text.index("{"):])


def direction(job):
    """The half of a job's report that has operations, that of the reads first."""
    return job["read"] if job["read"]["total_ios"] else job["write"]


def percentile(found, part):
    """A latency in us, as in `percentile(direction(job), 99.9)`."""
    return found["clat_ns"]["percentile"][f"{part:.6f}"] / 1e3


def cost(command, idle=0):
    """One run: operations per second, CPU time of each, beyond `idle` seconds for the run, and 99th percentile, both in us."""
    text, seconds = timed(command)
    found = direction(report(text)["jobs"][0])
    return found["iops"], max(0, seconds - idle) / found["total_ios"] * 1e6, percentile(found, 99)


def job_file(name, text, **options):
    """A job file with these lines, of which each option replaces the one of its name, or is a new one behind the first section's head."""
    for option, value in options.items():
        text, found = re.subn(rf"(?m)^{option}(=.*)?$", f"{option}={value}", text)
        if not found:
            text = re.sub(r"(?m)^\[.*\]$", rf"\g<0>\n{option}={value}", text, count=1)
    path = f"{WORK}/{name}.fio"
    with open(path, "w") as file:
        file.write(text)
    return path


def quartiles(values):
    """The lower quartile, the median and the upper quartile."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else list(values) * 3


def spread(values, digits=0, width=0):
    """The median, and least and most."""
    return f"{median(values):{width}.{digits}f} ({min(values):.{digits}f} .. {max(values):.{digits}f})"


def middle(values, digits=0, width=0, word=""):
    """The median, and the quartiles."""
    low, half, high = quartiles(values)
    return f"{half:{width}.{digits}f} ({word}{low:.{digits}f} .. {high:.{digits}f})"


def ratios(ours, theirs, column=0):
    """What the two results of each round come to, one over the other."""
    return [a[column] / b[column] for a, b in zip(ours, theirs, strict=True)]


def medians(rows):
    """The median of each column."""
    return [median(column) for column in zip(*rows)]


def show_costs(label, rows, digits, width):
    """A line for what `cost` has told."""
    cells = (f"{middle(column, some, width)} {unit}" for unit, some, column in zip(("IOPS", "us of CPU", "us p99"), digits, zip(*rows)))
    print(" ", label, "  ".join(cell.ljust(27 + width) for cell in cells).rstrip())


def show_rates(name, rows, *units):
    """A line for a server: requests per second, and the medians of the other columns, shown as in `"{:7.0f} ns"`."""
    cells = (unit.format(number) for unit, number in zip(units, medians(rows)[1:], strict=True))
    print(f"  {name:20} {spread([row[0] for row in rows], 0, 9)}".ljust(56), *cells)


def three_tries(what, run):
    """Prints `PASS` as soon as `run` holds, which returns whether it does, and words; fails where three tries do not."""
    for number in (1, 2, 3):
        holds, words = run()
        print(f"PASS {what}: {words}" if holds else f"NOTE {what}, try {number}: {words}", flush=True)
        if holds:
            return
    sys.exit(f"{what}: three tries differ")
