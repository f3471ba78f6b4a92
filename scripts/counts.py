#!/usr/bin/env python3
"""Prints counts of the sources: how large the main types and folders of blkmq are, and how many assertions its code has.

    scripts/counts.py [TREE]    the counts of the tree TREE, by default this one

A line is a product line if it has code and belongs to no test. Methods are those in the plain `impl` blocks of a type."""
import os
import re
import sys

tree = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
METHOD = re.compile(r"^    (pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?fn \w+", re.M)
# Strings and characters, in which braces and slashes mean nothing, and comments.
TEXT = r"""b?r(\#*)"(?:.|\n)*?"\1|b?"(?:\\(?:.|\n)|[^"\\])*"|b?'(?:\\u\{[0-9a-fA-F]+\}|\\x..|\\.|[^'\\\n])'"""
COMMENT_OR_TEXT = re.compile(rf"""(?P<comment>//[^\n]*|/\*(?:.|\n)*?\*/)|{TEXT.replace("1", "2")}""")
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*[^;{]*")


def plain(text):
    """The text without comments, and with empty strings, line by line as before."""
    kept = lambda found: re.sub(r"[^\n]", "", found.group()) if found.group("comment") else '""'
    return COMMENT_OR_TEXT.sub(kept, text)


def product(text):
    """The plain text without items that exist only in tests."""
    kept, at = [], 0
    for found in TEST_ITEM.finditer(text):
        if found.start() < at:
            continue
        kept.append(text[at : found.start()])
        at, depth = found.end(), 0
        while at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
    return "".join(kept) + text[at:]


def sources(folder):
    """The product text of each source below a folder of the tree, by its path."""
    found = {}
    for path, _, names in os.walk(os.path.join(tree, folder)):
        for name in names:
            file = os.path.join(path, name)
            if name.endswith(".rs") and name != "tests.rs" and "tests" not in file.split(os.sep):
                with open(file, encoding="utf-8") as source:
                    found[os.path.relpath(file, tree)] = product(plain(source.read()))
    return found


def blocks(head, texts):
    """The file and the body of each block that begins with `head` and ends with a brace at the margin."""
    pattern = re.compile(rf"^{head} \{{\n(.*?)^\}}", re.S | re.M)
    return [(path, block) for path, text in texts.items() for block in pattern.findall(text)]


def lines(text):
    return sum(1 for line in text.splitlines() if line.strip())


blkmq, sched = sources("crates/blkmq/src"), sources("crates/blkmq-sched/src")
rows = []

queue = blocks("impl (?:Request)?Queue", blkmq)
methods = [visible for _, body in queue for visible in METHOD.findall(body)]
rows.append(("RequestQueue: methods", len(methods)))
rows.append(("RequestQueue: public methods", methods.count("pub ")))
rows.append(("RequestQueue: files with its methods", len({path for path, _ in queue})))

scheduler = blocks(r"pub trait Scheduler\b[^{]*", sched)
rows.append(("Scheduler: methods of the trait", sum(len(METHOD.findall(body)) for _, body in scheduler)))

dispatcher = {path for path, _ in blocks(r"impl(?:<[^>]*>)? (?:Dispatcher|Runner)(?:<[^>]*>)?", blkmq)}
rows.append(("Dispatcher: files with its methods", len(dispatcher)))
rows.append(("Dispatcher: folders with its methods", len({os.path.dirname(path) for path in dispatcher})))
fields = blocks(r"pub\(crate\) struct (?:Dispatcher|Runner)(?:<[^>]*>)?", blkmq)
rows.append(("Dispatcher: pub(crate) fields", sum(body.count("    pub(crate) ") for _, body in fields)))

inside = {path: text for path, text in blkmq.items() if "/queue/" in path or path.endswith("/src/queue.rs")}
rows.append(("queue: files", len(inside)))
rows.append(("queue: product lines", sum(map(lines, inside.values()))))

code = [*blkmq.values(), *sched.values(), *sources("crates/blkmq-sync/src").values()]
functions = sum(len(re.findall(r"\bfn \w+", text)) for text in code)
asserted = sum(len(re.findall(r"\b(?:debug_)?assert(?:_eq|_ne)?!", text)) for text in code)
rows.append(("blkmq, blkmq-sched, blkmq-sync: functions", functions))
rows.append(("blkmq, blkmq-sched, blkmq-sync: assertions", asserted))
rows.append(("assertions of a function", f"{asserted / max(functions, 1):.2f}"))

for name, count in rows:
    print(f"{name:44} {count:>8}")
