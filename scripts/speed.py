"""The measurement of scripts/speed: programs in turns over rows of loads, and the ratios that these give."""
import json, math, os, re, signal, statistics, subprocess, sys, time
from measured import cpu, job_file

mode, work, tmpfs, *bases = sys.argv[1:]
programs = ["new", *bases]

def error(words):
    """Ends this program as for any error: code 1 says that a row is slower."""
    print(words, file=sys.stderr)
    sys.exit(2)

def seconds(name, usual):
    """The seconds that a variable of the environment gives."""
    given = os.environ.get(name, usual)
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", given) or float(given) == 0:
        error(f"{name}: seconds above 0 are wanted, not {given!r}")
    return float(given)

run_s, limit, chosen = seconds("RUN", "0.25"), seconds("LIMIT", "480"), os.environ.get("ROWS", "")
layouts = int(os.environ.get("LAYOUTS", "1"))
# Seconds: a turn, and how long a run may take beyond its time, or a server to start.
TURN, PATIENCE = 0.005, 60
# The least ratio that passes, and the width of an interval that tells enough.
LEAST, NARROW = 0.97, 0.02
processors = sorted(os.sched_getaffinity(0))

def job(name, sections, **options):
    """A job file with these sections, and options over the usual ones."""
    usual = dict(bs=512, rw="randread", ioengine="io_uring", iodepth=4, iodepth_batch_submit=4, iodepth_batch_complete=4,
                 norandommap=1, gtod_reduce=1, time_based=1, runtime=60)
    return job_file(name, "\n".join(f"[{one}]" for one in ("global", *sections)), **(usual | options))

scaling = "crates/blkmq-workbench/jobs/scaling-32x4.fio"
null = "null,irqmode=0,hw_queue_depth"
lockings = ["single", "staged", "batch", "combining"]
rows = {}
for n in (1, 4, 8, 32):
    one = [scaling, "--device", f"{null}=256", "--option", "numjobs=1"]
    for option in ("iodepth", "iodepth_batch_submit", "iodepth_batch_complete"):
        one += ["--option", f"{option}={n}"]
    rows[f"none, 1x{n}"] = one + ["--scheduler", "none"]
    rows[f"mq-deadline, passing, 1x{n}"] = one + "--scheduler mq-deadline --locking combining --bypass 1".split()
    for locking in lockings:
        rows[f"mq-deadline, {locking}, 1x{n}"] = one + f"--scheduler mq-deadline --locking {locking} --bypass 0".split()
many = [scaling, "--device", f"{null}=256", "--scheduler"]
rows["none, 32x4"] = many + ["none"]
rows["mq-deadline, passing, 32x4"] = many + "mq-deadline --locking combining --bypass 1".split()
waiting = [scaling, "--device", f"{null}=64", "--scheduler"]
rows["none, 32x4, 64 tags"] = waiting + ["none"]
for locking in lockings:
    rows[f"mq-deadline, {locking}, 32x4"] = many + f"mq-deadline --locking {locking} --bypass 0".split()
    rows[f"mq-deadline, {locking}, passing, 32x4, 64 tags"] = waiting + f"mq-deadline --locking {locking} --bypass 1".split()
for bypass in "01":
    rows[f"kyber, bypass {bypass}, 1x4"] = many + ["kyber", "--bypass", bypass, "--option", "numjobs=1"]
rows["bfq, two clients"] = [job("clients", ["one", "two"]), "--device", f"{null}=256", "--scheduler", "bfq"]
rows["mq-deadline, flushes, 1x4"] = [job("flushes", ["writer"], rw="randwrite", fsync=8), "--scheduler", "mq-deadline", "--device",
                                f"{null}=256,size=64M,memory_backed=1,cache_size=16M"]
rows["file, 4x4, tmpfs"] = [job("file", ["reader"], bs="4k", numjobs=4), "--device", f"file,path={tmpfs}", "--scheduler", "none"]
network = {}
for n in (1, 32):
    batch = max(1, n // 4)
    path = job(f"network-{n}", ["client"], bs="4k", iodepth=n, iodepth_batch_submit=batch, iodepth_batch_complete=1)
    network[f"nbd, 1x{n}"] = [path, "--scheduler", "none"]
rows |= network
try:
    rows = {name: row for name, row in rows.items() if re.search(chosen, name)}
except re.error as fault:
    error(f"ROWS: {chosen!r} is no regular expression: {fault}")
if not rows:
    error(f"ROWS: no row has a name that matches {chosen!r}")
if mode == "--rows":
    sys.exit(0)

# All that were started: whichever way this ends, none of them stays, stopped or not.
started, servers = [], {}
def start(command, output, processor=None):
    """Starts a program, on this processor if there is one. Its errors are in a file of its own."""
    prefix = [] if processor is None else ["taskset", "-c", str(processor)]
    errors = f"{work}/errors-{len(started)}"
    with open(errors, "w") as stderr:
        started.append(subprocess.Popen(prefix + command, stdout=output, stderr=stderr))
    started[-1].errors = errors
    return started[-1]

def layout_of(number):
    """The layout of the programs in the run of this number. The order of the programs and the processor change with it."""
    return (number + number // (layouts * len(programs))) % layouts + 1

def binary(program, number):
    """The file of a program for the run of this number: one of its layouts. A server runs on, with its first."""
    return f"target/speed/{program}" + (f"-layout{layout_of(number)}" if layouts > 1 else "")

def last_error(process):
    """The last line that a program wrote to its standard error."""
    return (open(process.errors).read().strip().splitlines() or ["it said nothing"])[-1]

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def server(program):
    """A server of this program in front of a null device. It is started once; `None` if it does not start."""
    if program not in servers:
        socket = f"{work}/{program}.sock"
        command = [binary(program, 0), "serve", "--device", f"{null}=256,size=1G", "--scheduler", "none", "--nbd", socket,
                   "--control", f"{work}/{program}.control"]
        servers[program] = start(command, subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE
        while not os.path.exists(socket):
            if servers[program].poll() is not None or time.monotonic() > until:
                return None
            time.sleep(0.02)
    return servers[program]

class Side:
    """One program's part in a run."""

    def __init__(self, program, name, number, processor):
        self.program, self.server, self.client, client, device = program, None, None, program, []
        if name in network:
            # One client measures all servers.
            self.server, client = server(program), "new"
            if self.server is None:
                return
            self.before = cpu(self.server.pid)
            device = ["--device", f"nbd,uri=nbd+unix:///?socket={work}/{program}.sock,hw_queue_depth=32"]
        seconds = run_s * len(programs)
        command = [binary(client, number), "bench", *rows[name], *device, "--runtime", f"{seconds * 1000:.0f}ms", "--json"]
        # One thread of each program, on one processor: on another one a neighbour may be slow.
        alone = ", 1x" in name and self.server is None
        self.output = open(f"{work}/{program}.json", "w+")
        self.client = start(command, self.output, processor if alone else None)

    def send(self, which):
        for process in filter(None, [self.client, self.server]):
            if process.poll() is None:
                process.send_signal(which)

    def result(self):
        """Operations a second, and CPU time of each; or why there are none."""
        if self.client is None:
            return f"the server does not start: {last_error(servers[self.program])}"
        if self.client.returncode != 0:
            return f"{last_error(self.client)} (exit code {self.client.returncode})"
        self.output.seek(0)
        found = json.load(self.output)
        rate = sum(part[kind]["iops"] for part in found["jobs"] for kind in ("read", "write", "trim"))
        if self.server is None:
            return rate, found["blkmq"]["cpu_ns_per_request"]
        return rate, (cpu(self.server.pid) - self.before) / rate

def run(name, order, number, processor):
    """Runs the programs of `order` in turns until all have ended. `number`: the row's runs before this one."""
    sides = []
    for program in order:
        sides.append(Side(program, name, number, processor))
        sides[-1].send(signal.SIGSTOP)
    going, until = {side for side in sides if side.client}, time.monotonic() + run_s * len(order) + PATIENCE
    while going:
        if time.monotonic() > until:
            error(f"{name}: {going.pop().program} does not end")
        for side in sides:
            # The turn of one that has ended is idle: the others get no more of the processor than before.
            side.send(signal.SIGCONT)
            time.sleep(TURN)
            if side.client and side.client.poll() is None:
                side.send(signal.SIGSTOP)
            else:
                going.discard(side)
    # Servers that were stopped with the last turn go on.
    for side in sides:
        side.send(signal.SIGCONT)
    return {side.program: side.result() for side in sides}

def estimate(logs):
    """The Hodges-Lehmann estimate of a ratio, and the signed ranks' 95 % interval."""
    n = len(logs)
    walsh = sorted((logs[i] + logs[j]) / 2 for i in range(n) for j in range(i, n))
    lowest = max(0, int(n * (n + 1) / 4 - 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)) - 1)
    return [math.exp(x) for x in (statistics.median(walsh), walsh[lowest], walsh[-1 - lowest])]

# Student's t: the 97.5 % quantiles for 1, 2, ... degrees of freedom. The last one serves for more, too.
STUDENT = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27)

def ratio(name, logs):
    """A row's ratio, and its 95 % interval. With several layouts they are of the layouts' means: the runs of one layout share
    the effect of its order of functions. A server has one layout."""
    if layouts == 1 or name in network:
        return estimate(logs)
    parts = {}
    for number, log in enumerate(logs):
        parts.setdefault(layout_of(number), []).append(log)
    means = [statistics.mean(part) for part in parts.values()]
    if len(means) < 2:
        return [math.exp(means[0]), 0, math.inf]
    half = STUDENT[min(len(means) - 1, len(STUDENT)) - 1] * statistics.stdev(means) / math.sqrt(len(means))
    return [math.exp(statistics.mean(means) + way * half) for way in (0, -1, 1)]

# Why a base cannot run a row: the first round tells, by two failures in a row.
missing, pairs, rates = {}, {}, {name: [] for name in rows}
def measure(name, number):
    order = [program for program in programs if (name, program) not in missing]
    order = order[number % len(order):] + order[:number % len(order)]
    order = order if number // len(order) % 2 == 0 else order[::-1]
    found = run(name, order, number, processors[number // 2 % len(processors)])
    if number == 0 and any(isinstance(result, str) for result in found.values()):
        found = run(name, order, number, processors[0])
    if isinstance(found["new"], str):
        error(f"{name}: {found['new']}")
    rates[name].append(found["new"][0])
    for base in set(order) - {"new"}:
        if isinstance(found[base], str):
            if number > 0:
                error(f"{name}: {base} failed: {found[base]}")
            missing[name, base] = found[base]
            continue
        rate, cost = (math.log(found["new"][0] / found[base][0]), math.log(found[base][1] / found["new"][1]))
        pairs.setdefault((name, base), []).append((rate, cost))

def is_narrow(logs):
    """Whether more runs of the same layouts would tell little: the intervals over all runs are narrow."""
    return all(high - low < NARROW for _, low, high in map(estimate, zip(*logs)))

def is_resolved(name):
    """Whether there are enough runs, and their intervals are narrow."""
    for base in bases:
        logs = pairs.get((name, base), [])
        if (name, base) not in missing and (len(logs) < max(8, 2 * layouts) or not is_narrow(logs)):
            return False
    return True

begun, number, left = time.monotonic(), 0, list(rows)
try:
    while left and (number < 6 or time.monotonic() - begun < limit):
        for name in left:
            measure(name, number)
        left = [name for name in left if not is_resolved(name)]
        number += 1
finally:
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()

print(f"RUN={run_s} LIMIT={limit:.0f} ROWS={chosen!r} LAYOUTS={layouts}: {number} rounds in {time.monotonic() - begun:.0f} s; this tree over the base: rate,")
print("and CPU time the other way round, with 95 % intervals; above 1 is better")
slower = open_rows = 0
for base in bases:
    print(f"\n{'against ' + base:44} {'rate now':>9}   {'rate':22} {'CPU time':22} runs")
    geometric = []
    for name in rows:
        if (name, base) in missing:
            print(f"{name:44} not in {base}: {missing[name, base]}")
            continue
        rate, cost = (ratio(name, column) for column in zip(*pairs[name, base]))
        geometric.append((math.log(rate[0]), math.log(cost[0])))
        is_slower = min(rate[2], cost[2]) < LEAST
        is_open = not is_slower and any(high - low >= NARROW for _, low, high in (rate, cost))
        slower, open_rows = slower + is_slower, open_rows + is_open
        shown = "".join(f"{a:.3f} ({b:.3f} .. {c:.3f}) " for a, b, c in (rate, cost))
        print(f"{name:44} {statistics.median(rates[name]) / 1e6:8.3f}M   {shown} {len(pairs[name, base]):3}{'  SLOWER' if is_slower else '  wide' if is_open else ''}")
    if geometric:
        rate, cost = (math.exp(statistics.mean(column)) for column in zip(*geometric))
        print(f"geometric mean: rate {rate:.3f}, CPU time {cost:.3f}")
if open_rows:
    print(f"wide: the intervals of {open_rows} rows are not narrower than {NARROW}; LIMIT gives them more time{', and LAYOUTS more layouts' if layouts > 1 else ''}")
if not pairs:
    error("no base can run any of these rows, so nothing was compared")
if slower:
    sys.exit(f"slower: {slower} rows lie wholly below {LEAST}")
