//! Compares what an emulated NVMe drive was told with what it had to be told, see [`orders`](super::orders).
//!
//! QEMU's trace says of each command that the drive took which kind it is, and by which queue it came, but not whether
//! a write has FUA. The whole command still lies in the memory of its queue, where the kernel put it and the drive read
//! it. A drive takes the commands of a queue in order. So the first command of a queue in the trace is at the first
//! place of the queue's memory, and so on, round and round.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::orders::MARK;

/// Bytes of a command.
const COMMAND: usize = 64;
/// Kinds of commands, by their codes.
const KINDS: [(u8, &str); 5] = [(0, "flush"), (1, "write"), (2, "read"), (8, "zeroes"), (9, "deallocate")];

/// A submission queue of the drive.
#[derive(Debug)]
struct Queue {
    /// The number of commands that its memory has room for.
    places: usize,
    /// The number of commands that the drive has taken from it.
    taken: usize,
    /// Whether completions come without an interrupt.
    is_polled: bool,
}

/// What QEMU's trace says.
#[derive(Debug, Default)]
struct Trace {
    queues: BTreeMap<usize, Queue>,
    /// The commands that the drive took: from which queue, the how many-th command there, and its code.
    commands: Vec<(usize, usize, u8)>,
}

/// A number behind a word in a line of the trace.
fn number(line: &str, word: &str) -> usize {
    let find = || {
        let rest = &line[line.find(word)? + word.len()..];
        let (digits, radix) = rest.strip_prefix("0x").map_or((rest, 10), |hex| (hex, 16));
        let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
        usize::from_str_radix(&digits[..end], radix).ok()
    };
    find().unwrap_or_else(|| panic!("there is no number behind {word:?}: {line}"))
}

impl Trace {
    fn new(text: &str) -> Self {
        let (mut trace, mut has_interrupt) = (Self::default(), BTreeMap::new());
        for line in text.lines() {
            let get = |word| number(line, word);
            match line.split_whitespace().next() {
                Some("pci_nvme_create_cq") => _ = has_interrupt.insert(get("cqid="), get("ien=") == 1),
                Some("pci_nvme_create_sq") => {
                    let is_polled = !has_interrupt[&get(" cqid=")];
                    let queue = Queue { places: get("qsize=") + 1, taken: 0, is_polled };
                    trace.queues.insert(get("sqid="), queue);
                    // The kernel has made its queues anew, as it does after the firmware. Their memory alone is known.
                    trace.commands.clear();
                }
                Some("pci_nvme_io_cmd") => {
                    let (id, code) = (get("sqid "), get("opc ") as u8);
                    let queue = trace.queues.get_mut(&id).expect("a queue is made before it is used");
                    trace.commands.push((id, queue.taken, code));
                    queue.taken += 1;
                }
                _ => (),
            }
        }
        trace
    }

    /// The commands between two marks, for each mark but the last one: run by run, as in `2 write,fua, 1 flush`.
    fn groups(&self, memory: &BTreeMap<usize, Vec<u8>>) -> Vec<String> {
        let mut groups: Vec<Vec<(usize, String)>> = Vec::new();
        for &(id, number, code) in &self.commands {
            let queue = &self.queues[&id];
            if queue.taken - number > queue.places {
                assert!(groups.is_empty(), "the memory of queue {id} has no room for all commands that are judged");
                continue;
            }
            let command = &memory[&id][number % queue.places * COMMAND..][..COMMAND];
            let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| command[at * 4 + byte]));
            assert_eq!(command[0], code, "the memory of queue {id} has another command than the trace at {number}");
            let kind = KINDS.iter().find(|kind| kind.0 == code).map_or("something else", |kind| kind.1);
            if kind == "read" && u64::from(word(10)) == MARK {
                groups.push(Vec::new());
                continue;
            }
            let Some(group) = groups.last_mut() else { continue };
            let is_durable = word(12) & 1 << 30 != 0;
            let what = format!(
                "{kind}{}{}",
                if is_durable { ",fua" } else { "" },
                if queue.is_polled { ",polled" } else { "" }
            );
            match group.last_mut() {
                Some((count, last)) if *last == what => *count += 1,
                _ => group.push((1, what)),
            }
        }
        groups.pop().expect("there is a mark at the end");
        let text = |group: &[(usize, String)]| {
            group.iter().map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
        };
        groups.iter().map(|group| text(group)).collect()
    }
}

/// Compares what is in `folder`: the trace, the memory of the queues, and what the guest said.
pub(crate) fn check(folder: &str) {
    let folder = Path::new(folder);
    let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let told = Trace::new(&text("told"));
    let memory = |id: &usize| fs::read(folder.join(format!("queue.{id}"))).expect("the memory of each queue is kept");
    let groups = told.groups(&told.queues.keys().map(|id| (*id, memory(id))).collect());
    let polled: Vec<_> = told.queues.values().map(|queue| queue.is_polled).collect();
    assert_eq!(polled, [false, false, false, false, true, true], "the kernel uses four queues, and polls two");
    // What came after, from threads on every processor.
    let all = text("trace");
    for id in told.queues.keys() {
        let command = format!(" sqid {id} ");
        assert!(all[text("told").len()..].lines().any(|line| line.contains(&command)), "queue {id} has had no command");
    }
    println!("PASS the drive has four queues, and two that are polled, and takes commands from each");
    let said = text("console");
    let expected: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("DRIVE ")?.split_once(": ")).collect();
    assert_eq!(expected.len(), groups.len(), "each group has its mark");
    assert!(expected.len() > 10, "{expected:?}");
    for ((name, commands), told) in expected.iter().zip(&groups) {
        assert_eq!(commands, told, "{name}");
        println!("PASS the drive is told, for {name}: {told}");
    }
}
