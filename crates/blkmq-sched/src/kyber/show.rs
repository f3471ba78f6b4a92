//! Every list and counter in readable form: what Linux shows of a hardware queue in debugfs.

use core::fmt::{Result, Write};

use super::Kyber;
use super::request::Request;
use crate::SchedDomain;

impl Kyber {
    pub(super) fn show_all(&self, out: &mut dyn Write) -> Result {
        for domain in SchedDomain::ALL {
            let (queue, name) = (&self.queues[domain.index()], domain.name());
            writeln!(out, "{name}_rqs:")?;
            for (_, request) in queue.ready.iter(&self.requests) {
                show_request(out, request)?;
            }
            writeln!(out, "{name}_ctx_rqs:")?;
            for ctx in self.ctxs.iter() {
                for (_, request) in ctx[domain.index()].iter(&self.requests) {
                    show_request(out, request)?;
                }
            }
            writeln!(out, "{name}_waiting: {}", u8::from(queue.lacks_token))?;
        }
        writeln!(out, "dispatch:")?;
        for (_, request) in self.at_head.iter(&self.requests) {
            show_request(out, request)?;
        }
        writeln!(out, "cur_domain: {}\nbatching: {}", self.current.name().to_ascii_uppercase(), self.batching)?;
        writeln!(out, "async_depth: {}", self.async_depth())
    }
}

fn show_request(out: &mut dyn Write, request: &Request) -> Result {
    let (id, info) = (request.id.0, &request.info);
    writeln!(out, "  rq {id} {:?} sector {} + {} ctx {}", info.op, info.sector, info.nr_sectors, info.ctx)
}
