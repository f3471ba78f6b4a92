//! A front-end from its connection on: its messages, and what they do.
//!
//! The thread of a connection never touches a running ring. It stops the ring at its worker, which returns the ring
//! once all of its requests have completed, changes it, and starts it again.

mod descriptors;
mod member;
mod vring;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq::{Limits, QueueError};
use blkmq_engine::{Engine, Export, Phase};
use vhost::vhost_user::{VhostUserProtocolFeatures as ProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::virtio_config::{VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use self::member::Member;
use self::vring::Vring;
use crate::device::Device;
use crate::foreign::Foreign;
use crate::inflight::Inflight;
use crate::memory::{MAX_REGIONS, Memory, MemoryError};
use crate::protocol::message::{Message, Signal, config_change};
use crate::protocol::wire::{self, Received, Wire, WireError};
use crate::protocol::{config, has};
use crate::ring::{Fault, MAX_SIZE};
use crate::ring_server::Terms;
use crate::worker::{Halt, Order, RingFault, Worker};

/// Features of rings and of the protocol, which do not depend on the device. `VIRTIO_BLK_F_REQ_FLAGS` is not among the
/// offered ones: with it, the field of the header that `prio=guest` reads is one of flags.
const FEATURES: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_F_VERSION_1
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
const PROTOCOL_FEATURES: ProtocolFeatures = ProtocolFeatures::MQ
    .union(ProtocolFeatures::REPLY_ACK)
    .union(ProtocolFeatures::BACKEND_REQ)
    .union(ProtocolFeatures::CONFIG)
    .union(ProtocolFeatures::INFLIGHT_SHMFD)
    .union(ProtocolFeatures::RESET_DEVICE)
    .union(ProtocolFeatures::CONFIGURE_MEM_SLOTS);
/// How often a connection re-checks the device's capacity, if its front-end takes notifications, and a worker that has
/// to return a ring.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of configuration that a front-end may ask for: what the standard leaves for a device.
const MAX_CONFIG: u32 = 256;

/// Why a connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ending {
    #[error("the server stops")]
    Stopped,
    /// The front-end has gone, the socket failed, or what came by it is no message.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The guest has written what cannot be into a ring.
    #[error("ring {0}: {1}")]
    Ring(u16, Fault),
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// What the front-end asks for cannot be.
    #[error("{0}")]
    Front(String),
    #[error("{0}")]
    Queue(QueueError),
    #[error("{0}")]
    System(io::Error),
    /// A worker has panicked, and its rings are lost. A front-end that connects again gets new ones.
    #[error("a thread of its rings has panicked")]
    Lost,
}

/// What a message gets for an answer.
enum Answer {
    /// Whether it went well, if the front-end wants to know.
    Done,
    Body(Vec<u8>),
    BodyWith(Vec<u8>, OwnedFd),
}

fn number(value: u64) -> Answer {
    Answer::Body(value.to_le_bytes().to_vec())
}

/// A front-end that is connected.
#[derive(Debug)]
pub(crate) struct Connection<'a> {
    device: &'a Device,
    engine: &'a Arc<Engine>,
    wire: Wire,
    bell: &'a Arc<EventFd>,
    workers: Vec<Worker>,
    /// Behind the workers, which count for it to their end.
    _member: Member<'a>,
    faults: Receiver<RingFault>,
    terms: Arc<Terms>,
    features: u64,
    protocol_features: ProtocolFeatures,
    memory: Memory,
    vrings: Vec<Vring>,
    inflight: Option<Inflight>,
    /// Where the front-end takes messages of the device.
    channel: Option<Foreign>,
    /// The capacity that the front-end was told, in sectors. `None` before it was: it may know that of a server before
    /// this one.
    capacity: Option<u64>,
}

impl<'a> Connection<'a> {
    /// A connection, whose workers wait for rings.
    pub(crate) fn new(
        device: &'a Device,
        engine: &'a Arc<Engine>,
        socket: OwnedFd,
        told: &'a Arc<EventFd>,
    ) -> Result<Self, Ending> {
        let (tell, faults) = channel();
        let (member, bells) = Member::new(device, engine).map_err(Ending::System)?;
        let start = |(thread, bell): (usize, Arc<EventFd>)| {
            let (submitter, session) = member.equip(thread).map_err(Ending::Queue)?;
            let name = format!("vhost-user {thread}");
            Worker::start(name, (submitter, session, bell), tell.clone(), Arc::clone(told)).map_err(Ending::System)
        };
        let export = &engine.exports[device.export];
        let limits = export.queue.limits();
        let terms = Terms {
            limits,
            is_read_only: device.read_only || export.read_only || limits.read_only,
            is_write_through: AtomicBool::new(false),
            name: device.name(),
            guest_priority: device.guest_priority.then_some(export.priority),
            most_copied: engine.longest(),
        };
        Ok(Self {
            device,
            engine,
            wire: Wire::new(socket),
            bell: told,
            workers: bells.into_iter().enumerate().map(start).collect::<Result<_, _>>()?,
            _member: member,
            faults,
            terms: Arc::new(terms),
            features: 0,
            protocol_features: ProtocolFeatures::empty(),
            memory: Memory::default(),
            vrings: (0..device.nr_queues).map(|_| Vring::default()).collect(),
            inflight: None,
            channel: None,
            capacity: None,
        })
    }

    /// Serves the front-end until it goes, until it or its guest does what cannot be, or until the server stops. All
    /// requests that were taken are answered then.
    pub(crate) fn run(&mut self) -> Ending {
        let ending = loop {
            if let Err(ending) = self.step() {
                break ending;
            }
        };
        for ring in 0..self.device.nr_queues {
            self.halt(ring, Halt::End);
        }
        ending
    }

    fn step(&mut self) -> Result<(), Ending> {
        if self.is_stopped() {
            return Err(Ending::Stopped);
        }
        if let Ok((ring, fault)) = self.faults.try_recv() {
            return Err(Ending::Ring(ring, fault));
        }
        if self.workers.iter().any(Worker::has_ended) {
            return Err(Ending::Lost);
        }
        if let Some(received) = self.wire.receive()? {
            return self.answer(received);
        }
        let timeout = self.channel.is_some().then_some(POLL_INTERVAL);
        self.bell.wait_beside(&[self.wire.as_fd()], timeout);
        self.notify_growth();
        Ok(())
    }

    /// Notifies the front-end if the device has grown, or may have grown before this connection. Front-ends may ignore
    /// that until a ring is running.
    fn notify_growth(&mut self) {
        let Some(channel) = self.channel.as_ref().filter(|_| self.vrings.iter().any(|vring| vring.is_started)) else {
            return;
        };
        // A device that has become smaller fails what lies behind its end, and the machine is not told.
        let found = self.export().queue.revalidate().ok().or(self.capacity);
        if found != self.capacity {
            self.capacity = found;
            // A front-end may close this channel for a reason of its own, and go on without it.
            if wire::send(channel.as_fd(), &config_change(), None).is_err() {
                self.channel = None;
            }
        }
    }

    fn answer(&mut self, received: Received) -> Result<(), Ending> {
        let Received { header, body, message, files } = received;
        let wants_reply = header.wants_reply() && self.protocol_features.contains(ProtocolFeatures::REPLY_ACK);
        let reply = |wire: &Wire, body: &[u8], file: Option<&OwnedFd>| {
            wire::send(wire.as_fd(), &header.reply(body), file.map(|file| file.as_fd())).map_err(Ending::from)
        };
        match message.map_err(|error| Ending::Wire(error.into())).and_then(|message| self.handle(message, files)) {
            Ok(Answer::Body(answer)) => reply(&self.wire, &answer, None),
            Ok(Answer::BodyWith(mut answer, file)) => {
                // QEMU's body has padding at its end.
                answer.resize(body.len().max(answer.len()), 0);
                reply(&self.wire, &answer, Some(&file))
            }
            Ok(Answer::Done) if wants_reply => reply(&self.wire, &0_u64.to_le_bytes(), None),
            Ok(Answer::Done) => Ok(()),
            Err(ending) => {
                if wants_reply {
                    // The connection ends for another reason, whether the front-end learns of it or not.
                    let _ = reply(&self.wire, &1_u64.to_le_bytes(), None);
                }
                Err(ending)
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.engine.stop.phase() != Phase::Running
    }

    fn export(&self) -> &'a Export {
        &self.engine.exports[self.device.export]
    }

    fn limits(&self) -> Limits {
        self.export().queue.limits()
    }

    fn offered(&self) -> u64 {
        let packed = u64::from(self.device.packed) << VIRTIO_F_RING_PACKED;
        FEATURES | packed | config::features(&self.limits(), self.terms.is_read_only)
    }

    fn handle(&mut self, message: Message, mut files: Vec<Foreign>) -> Result<Answer, Ending> {
        let wrong = |text: String| Err(Ending::Front(text));
        match message {
            Message::GetFeatures => return Ok(number(self.offered())),
            Message::SetFeatures(features) => {
                let unknown = features & !self.offered();
                if unknown != 0 {
                    return wrong(format!("features {unknown:#x}, which were not offered"));
                }
                self.features = features;
                self.choose_cache();
            }
            Message::GetProtocolFeatures => return Ok(number(PROTOCOL_FEATURES.bits())),
            Message::SetProtocolFeatures(features) => {
                self.protocol_features = ProtocolFeatures::from_bits_truncate(features) & PROTOCOL_FEATURES;
            }
            Message::GetNrQueues => return Ok(number(self.device.nr_queues.into())),
            Message::SetOwner => (),
            Message::ResetOwner | Message::ResetDevice => {
                for ring in 0..self.device.nr_queues {
                    self.halt(ring, Halt::End);
                    self.vrings[usize::from(ring)] = Vring::default();
                }
                // What was in progress was the last driver's.
                self.inflight = None;
            }
            Message::GetMaxRegions => return Ok(number(MAX_REGIONS as u64)),
            Message::SetMemory(regions) => {
                let mut memory = Memory::default();
                for (info, file) in regions.into_iter().zip(files) {
                    self.add_region(&mut memory, info, file)?;
                }
                self.change_memory(memory)?;
            }
            Message::AddRegion(info) => {
                let mut memory = self.memory.clone();
                self.add_region(&mut memory, info, files.remove(0))?;
                self.change_memory(memory)?;
            }
            Message::RemoveRegion(info) => {
                let mut memory = self.memory.clone();
                memory.remove(info)?;
                self.change_memory(memory)?;
            }
            Message::GetConfig { offset, len, .. } => return Ok(self.config(offset, len)),
            Message::SetConfig { offset, bytes } => {
                return wrong(format!("{} bytes of the configuration at {offset} to be changed", bytes.len()));
            }
            Message::SetBackendChannel => self.channel = files.pop(),
            Message::GetInflight(_) | Message::SetInflight(_)
                if !self.protocol_features.contains(ProtocolFeatures::INFLIGHT_SHMFD) =>
            {
                return wrong("memory of what is in progress, which was not agreed on".to_owned());
            }
            Message::GetInflight(info) => {
                if info.nr_queues > self.device.nr_queues || info.size == 0 || info.size > MAX_SIZE {
                    return wrong(format!("{} rings of {} to be kept", info.nr_queues, info.size));
                }
                let (info, file) = Inflight::make(info.nr_queues, info.size).map_err(Ending::Front)?;
                return Ok(Answer::BodyWith(info.bytes(), file));
            }
            Message::SetInflight(info) => {
                let is_packed = has(self.features, VIRTIO_F_RING_PACKED);
                let admit = |file| self.admit_memory("the record of what is in progress", file);
                let file = files.pop().map(admit).transpose()?;
                let inflight = file.map(|file| Inflight::take(info, file, is_packed));
                self.inflight = inflight.transpose().map_err(Ending::Front)?;
            }
            Message::SetRingSize { ring, size } => {
                let size = u16::try_from(size).map_err(|_| Ending::Front(format!("a ring of {size}")))?;
                self.change(ring, |vring| vring.size = size)?;
            }
            Message::SetRingAddress { ring, flags, descriptors, used, available } => {
                // The only flag asks for a log of what is written, which was not offered.
                if flags != 0 {
                    return wrong(format!("a ring with the flags {flags:#x}"));
                }
                self.change(ring, |vring| vring.addresses = Some([descriptors, available, used]))?;
            }
            Message::SetRingBase { ring, base } => self.change(ring, |vring| vring.base = base)?,
            Message::GetRingBase { ring } => {
                self.vring(ring)?;
                self.halt(ring as u16, Halt::End);
                let vring = self.vring(ring)?;
                vring.signals = Default::default();
                let base = vring.base;
                return Ok(Answer::Body([ring.to_le_bytes(), base.to_le_bytes()].concat()));
            }
            Message::SetSignal { ring, signal: Signal::Kick, has_file: false } => {
                return wrong(format!("ring {ring} without kicks"));
            }
            Message::SetSignal { ring, signal, .. } => {
                let file = self.admit_eventfd(ring, signal, files.pop())?;
                self.set_signal(ring, signal, file)?;
            }
            Message::EnableRing { ring, is_enabled } => {
                let vring = self.vring(ring)?;
                vring.is_enabled = is_enabled;
                if vring.is_started {
                    self.worker(ring as u16).order(Order::Enable(ring as u16, is_enabled));
                }
            }
        }
        Ok(Answer::Done)
    }

    /// The answer to a question for the configuration: of no length if there is none such.
    fn config(&self, offset: u32, len: u32) -> Answer {
        let limits = self.limits();
        // A guest that does not flush has a cache that writes through. Before it has chosen, a front-end asks for what
        // the guest will read if it flushes.
        let flushes = self.features == 0 || has(self.features, VIRTIO_BLK_F_FLUSH);
        let is_writeback = limits.write_cache && !limits.no_flush && flushes;
        let mut config = config::bytes(&limits, self.device.nr_queues, is_writeback).to_vec();
        config.resize(MAX_CONFIG as usize, 0);
        let range = offset.checked_add(len).filter(|end| *end <= MAX_CONFIG).map(|end| offset as usize..end as usize);
        let bytes = range.map_or(&[][..], |range| &config[range]);
        let words = [offset, bytes.len() as u32, 0].map(u32::to_le_bytes);
        Answer::Body([words.as_flattened(), bytes].concat())
    }

    /// Writes are durable when they are over if the guest does not flush.
    fn choose_cache(&self) {
        let limits = self.terms.limits;
        let has_cache = limits.write_cache && !limits.no_flush;
        let is_write_through = has_cache && !has(self.features, VIRTIO_BLK_F_FLUSH);
        // Relaxed: the guest waits for the answer before it relies on it.
        self.terms.is_write_through.store(is_write_through, Ordering::Relaxed);
    }

    fn vring(&mut self, ring: u32) -> Result<&mut Vring, Ending> {
        let nr = self.device.nr_queues;
        let index = usize::try_from(ring).ok().filter(|index| *index < self.vrings.len());
        index.map(|index| &mut self.vrings[index]).ok_or(Ending::Front(format!("ring {ring} of {nr} rings")))
    }

    fn worker(&self, ring: u16) -> &Worker {
        &self.workers[usize::from(ring) % self.workers.len()]
    }

    /// Changes a ring while it does not work.
    fn change(&mut self, ring: u32, change: impl FnOnce(&mut Vring)) -> Result<(), Ending> {
        self.vring(ring)?;
        self.halt(ring as u16, Halt::Pause);
        change(self.vring(ring)?);
        self.start(ring as u16)
    }

    fn set_signal(&mut self, ring: u32, signal: Signal, file: Option<OwnedFd>) -> Result<(), Ending> {
        if signal == Signal::Kick {
            return self.change(ring, |vring| vring.signals.kick = file);
        }
        let vring = self.vring(ring)?;
        if vring.is_started {
            self.worker(ring as u16).order(Order::Change(ring as u16, signal, file));
        } else {
            *vring.signals.get_mut(signal) = file;
        }
        Ok(())
    }

    /// Changes the guest's memory while no ring works. A ring whose memory is away waits: QEMU takes a region that has
    /// changed out, and adds it again.
    fn change_memory(&mut self, memory: Memory) -> Result<(), Ending> {
        (0..self.device.nr_queues).for_each(|ring| self.halt(ring, Halt::Pause));
        self.memory = memory;
        for ring in 0..self.device.nr_queues {
            if self.vrings[usize::from(ring)].has_memory(&self.memory) {
                self.start(ring)?;
            }
        }
        Ok(())
    }

    /// Stops a ring, and waits until nothing of it is in progress.
    fn halt(&mut self, ring: u16, mut halt: Halt) {
        let index = usize::from(ring);
        if !std::mem::take(&mut self.vrings[index].is_started) {
            return;
        }
        if self.worker(ring).has_ended() {
            // The ring is lost with it, and no answer comes.
            return;
        }
        let (done, ring_servers) = channel();
        self.worker(ring).order(Order::Stop(ring, halt, done.clone()));
        let ring_server = loop {
            match ring_servers.recv_timeout(POLL_INTERVAL) {
                Ok(ring_server) => break ring_server,
                // A worker that has panicked gives no ring back.
                Err(_) if self.worker(ring).has_ended() => return,
                Err(_) if halt == Halt::Pause && self.is_stopped() => {
                    halt = Halt::End;
                    self.worker(ring).order(Order::Stop(ring, halt, done.clone()));
                }
                Err(_) => (),
            }
        };
        let vring = &mut self.vrings[index];
        vring.base = ring_server.virtqueue.base();
        vring.signals = self.workers[index % self.workers.len()].signals_of(*ring_server);
    }

    /// Starts a ring if all of it is known.
    fn start(&mut self, ring: u16) -> Result<(), Ending> {
        let Self { vrings, memory, terms, inflight, features, .. } = self;
        let vring = &mut vrings[usize::from(ring)];
        let ring_server = vring.start(ring, memory, *features, inflight.as_ref(), terms);
        if let Some(ring_server) = ring_server.map_err(|fault| Ending::Ring(ring, fault))? {
            let begun = self.worker(ring).begin(ring_server);
            self.vrings[usize::from(ring)].is_started = begun.is_ok();
            return begun.map_err(Ending::System);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
