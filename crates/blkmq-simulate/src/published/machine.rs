//! The machines on which the published rows were measured.

/// A machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Its name in the files.
    pub key: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// The sockets that took part.
    pub sockets: usize,
    /// The cores of a socket.
    pub cores: usize,
    /// The hardware threads of a core that were in use.
    pub threads: usize,
    /// Which profile stands for it.
    pub profile: Profiled,
}

/// Which profile stands for a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profiled {
    /// This one, from a published matrix of the same CPUs.
    Own(&'static str),
    /// This one, as the nearest of those that were measured. It was chosen by what is known of the machine, never by
    /// a row. It may have fewer CPUs.
    Near(&'static str),
}

impl Machine {
    /// How many hardware threads took part, or could.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.sockets * self.cores * self.threads
    }

    /// The machine of that name in the files.
    #[must_use]
    pub fn named(key: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|machine| machine.key == key)
    }

    /// All machines.
    pub const ALL: [Self; 17] = [
        machine("e5-2680v4-2s", "2 x Xeon E5-2680 v4, 2.4 GHz", [2, 14, 2], Profiled::Own("e5-2680v4-2s")),
        machine("e5-2660-1s", "one socket of 2 x Xeon E5-2660, 2.2 GHz", [1, 8, 2], Profiled::Near("e5-2680v4-2s")),
        machine("d-2191", "Xeon D-2191, 1.6 GHz", [1, 18, 2], Profiled::Near("8375c-2s")),
        machine("skylake-4c", "a Skylake of 4 cores", [1, 4, 1], Profiled::Near("6700k")),
        machine("icelake-4c", "an Ice Lake of 4 cores", [1, 4, 1], Profiled::Near("6700k")),
        machine("graviton2-16c", "16 cores of an AWS Graviton2", [1, 16, 1], Profiled::Near("graviton3")),
        machine("graviton1-16c", "16 cores of AWS Graviton1", [1, 16, 1], Profiled::Near("kunpeng-920")),
        machine("icpe24", "one socket of an Intel CPU of 10 cores", [1, 10, 1], Profiled::Near("8375c-2s")),
        machine("7950x", "Ryzen 9 7950X", [1, 16, 2], Profiled::Own("7950x")),
        machine("r7525", "Dell R7525, 2 x EPYC", [2, 32, 2], Profiled::Near("7742-2s")),
        machine("kunpeng-920-256", "Kunpeng 920, 256 cores", [4, 64, 1], Profiled::Near("kunpeng-920")),
        machine("kunpeng-920-128", "Kunpeng 920, 128 cores", [2, 64, 1], Profiled::Near("kunpeng-920")),
        machine("xeon-16c", "a Xeon of 16 cores", [1, 16, 1], Profiled::Near("8375c-2s")),
        machine("xeon-48t", "48 hardware threads, 2017", [2, 12, 2], Profiled::Near("e5-2680v4-2s")),
        machine("xeon-8468-2s", "2 x Xeon Platinum 8468", [2, 48, 2], Profiled::Near("8375c-2s")),
        machine("xeon-8468-2s-vm", "2 x Xeon Platinum 8468, virtual", [2, 48, 1], Profiled::Near("8375c-2s")),
        machine("ampere-2x128", "2 x Ampere of 128 cores", [2, 128, 1], Profiled::Near("kunpeng-920")),
    ];
}

const fn machine(
    key: &'static str,
    what: &'static str,
    [sockets, cores, threads]: [usize; 3],
    profile: Profiled,
) -> Machine {
    Machine { key, what, sockets, cores, threads, profile }
}
