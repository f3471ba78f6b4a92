use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use blkmq::RequestQueue;
use blkmq::driver::spec;
use blkmq_engine::{Clients, Export, FrontEnd, Source, harness};

use super::*;
use crate::connection::offer::offer;
use crate::nbd::commands;
use crate::nbd::negotiation::Agreement;

/// A client's end of a socket, and the connection at the other end. The client has just chosen a device of 1 MiB.
fn connection() -> (UnixStream, Transmission) {
    let queue = RequestQueue::builder(spec::open("ram,size=1M").unwrap()).build().unwrap();
    let engine = harness::engine(Export::new("", queue), 1);
    let (theirs, ours) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let bell = Arc::new(EventFd::new().unwrap());
    let source = Source::User(0);
    let entry = Clients::new(1).join(FrontEnd::Nbd, "a test".into(), source, Arc::clone(&bell)).unwrap();
    let export = &engine.exports[0];
    let mut submitter = export.join(&entry).unwrap().unwrap();
    let offer = offer(export, engine.bounds.bytes, true);
    let agreement = Agreement { export: 0, offer, has_structured_replies: false, has_allocation: false };
    let adapter = Adapter::new(&engine, &agreement, &entry, &mut submitter);
    let (stream, stop) = (Stream::new(ours.into()), engine.stop.clone());
    (theirs, Transmission::new(stream, entry, stop, None, submitter, adapter, Input::new()))
}

/// The bytes of a request for the first block.
fn request(kind: u16) -> Vec<u8> {
    let request = [&0x2560_9513_u32.to_be_bytes()[..], &[0, 0], &kind.to_be_bytes(), &[0; 16], &4096_u32.to_be_bytes()];
    request.concat()
}

/// Red, because it waits forever, if the last receive, which is short, makes the connection wait for the socket as
/// usual: this socket will never become ready again.
#[test]
#[cfg_attr(miri, ignore = "there are no sockets")]
fn who_is_gone_is_heard_to_the_end_though_nobody_looks_again() {
    let (mut theirs, mut transmission) = connection();
    theirs.write_all(&request(commands::READ)).unwrap();
    drop(theirs);
    transmission.poll_heuristic = PollHeuristic::single();
    transmission.note_ready(PollFlags::IN | PollFlags::HUP);
    assert!(matches!(transmission.run(), Err(Ending::Gone)));
}

/// Red if the request that is cut off fails for another reason than the one that ended the input.
#[test]
#[cfg_attr(miri, ignore = "there are no sockets")]
fn a_write_that_a_drain_cuts_off_before_it_is_looked_at_fails_for_the_drain() {
    let (mut theirs, mut transmission) = connection();
    theirs.write_all(&[&request(commands::WRITE)[..], &[1; 100]].concat()).unwrap();
    transmission.input.receive(&mut transmission.stream, &mut [], usize::MAX).unwrap();
    transmission.stop.drain();
    let client = thread::spawn(move || {
        let mut reply = Vec::new();
        theirs.read_to_end(&mut reply).map(|_| reply)
    });
    assert!(transmission.run().is_ok());
    drop(transmission);
    let reply = client.join().unwrap().unwrap();
    assert_eq!((reply.len(), &reply[4..8]), (16, &108_u32.to_be_bytes()[..]));
}
