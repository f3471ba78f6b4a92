//! The contract between a scheduler and its embedder.

use blkmq_sched::{
    ClientSettings, DispatchContext, FeedbackKind, InsertAt, Op, RqId, SCHEDULERS, Ticket, Time, scheduler,
};

use crate::bench::{client, lone};

/// What an embedder is asked for and given by one dispatch.
#[derive(Debug, Default)]
struct Asked {
    tokens: usize,
    tickets: Vec<Ticket>,
}

impl DispatchContext for Asked {
    fn take_token(&mut self, _of: blkmq_sched::SchedDomain) -> bool {
        self.tokens += 1;
        true
    }

    fn set_ticket(&mut self, ticket: Ticket) {
        self.tickets.push(ticket);
    }
}

/// Linux's `elevator_mq_ops` are 22. Red before dispatching with and without tokens, the ticket, the value of a
/// hardware queue and its control, and admission and its bound became one method each: there were 27.
#[test]
fn the_contract_has_no_more_methods_than_linux_s() {
    let source = include_str!("../../src/scheduler.rs");
    let (_, contract) = source.split_once("pub trait Scheduler").expect("the file has the contract");
    let (contract, _) = contract.split_once("\n}\n").expect("the contract ends");
    assert_eq!(contract.matches("\n    fn ").count(), 22);
}

/// Red if a request leaves with two tickets, or none although the policy wants events; if a policy that takes tokens
/// takes none for a request; and if a dispatch that returns nothing takes or leaves anything.
#[test]
fn a_dispatch_brings_what_its_request_needs_and_nothing_else() {
    for known in SCHEDULERS {
        let mut scheduler = scheduler(known.name).expect("it is described");
        let tokens = usize::from(scheduler.init_hctx().is_some());
        let tickets = usize::from(scheduler.feedback() == FeedbackKind::Events);
        scheduler.reserve(1);
        scheduler.join(client(1), &ClientSettings::default());
        scheduler.insert(RqId(1), &lone(client(1), 0, Op::Read), InsertAt::Sorted, Time(0));
        let mut asked = Asked::default();
        assert_eq!(scheduler.dispatch(&mut asked, Time(0)), Some(RqId(1)));
        assert_eq!((asked.tokens, asked.tickets.len()), (tokens, tickets), "{}", scheduler.name());
        let mut asked = Asked::default();
        assert_eq!(scheduler.dispatch(&mut asked, Time(0)), None);
        assert_eq!((asked.tokens, asked.tickets.len()), (0, 0), "{}", scheduler.name());
    }
}
