//! The control socket of a server: HTTP and JSON, so that `curl` speaks to it too.

pub(crate) mod client;
mod http;
mod metrics;
mod routes;
pub(crate) mod schema;

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq_export::Latencies;

use http::{Answer, Hasty, Unread};
use schema::Client;

/// Connections that are served at once; more are turned away.
const MAX_CONNECTIONS: usize = 16;
/// How long a client may take to ask, and then to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server rests when it cannot take a connection, for want of file descriptors or threads.
const REST: Duration = Duration::from_millis(100);

/// A queue that is served.
#[derive(Debug)]
pub(crate) struct Served {
    /// The export's name, or `default` for the one without a name.
    pub(crate) name: String,
    /// The device's spec.
    pub(crate) device: String,
    pub(crate) description: String,
    pub(crate) read_only: bool,
    /// Where clients find it.
    pub(crate) uris: Vec<String>,
    pub(crate) q: Arc<RequestQueue>,
}

/// What is controlled.
pub(crate) struct State {
    pub(crate) queues: Vec<Served>,
    /// Who is connected.
    pub(crate) clients: Box<dyn Fn() -> Vec<Client> + Send + Sync>,
    /// How long the requests of a queue's clients took.
    pub(crate) latencies: Box<dyn Fn(&str) -> Latencies + Send + Sync>,
    /// Begins to end the server, gracefully.
    pub(crate) stop: Box<dyn Fn() + Send + Sync>,
}

/// Listens for as long as the process lives.
pub(crate) fn start(listener: UnixListener, state: State) -> std::io::Result<()> {
    let state = Arc::new(state);
    thread::Builder::new().name("control".to_owned()).spawn(move || {
        // Every connection holds one; the count of them is that of the connections.
        let seats = Arc::new(());
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                thread::sleep(REST);
                continue;
            };
            if Arc::strong_count(&seats) > MAX_CONNECTIONS {
                turn_away(&stream);
                continue;
            }
            let (seat, state) = (Arc::clone(&seats), Arc::clone(&state));
            let talk = move || {
                serve(stream, &state);
                drop(seat);
            };
            // Without a thread the connection is closed, which says enough.
            let _ = thread::Builder::new().name("control client".to_owned()).spawn(talk);
        }
    })?;
    Ok(())
}

fn turn_away(mut stream: &UnixStream) {
    let mut bytes = Vec::new();
    let _ = Answer::refusal(http::UNAVAILABLE, "too many connections at once").write(&mut bytes);
    // A few bytes always fit into the buffer of a new connection, so this does not wait.
    let _ = stream.write(&bytes);
}

fn serve(stream: UnixStream, state: &State) {
    let Ok(answers) = stream.try_clone() else { return };
    let (answer, stops) = match http::read(&mut Hasty::new(stream, PATIENCE)) {
        Ok(request) => routes::answer(state, &request),
        Err(Unread::Wrong(answer)) => (answer, false),
        Err(Unread::Gone) => return,
    };
    let mut answers = Hasty::new(answers, PATIENCE);
    if answer.write(&mut answers).is_ok() {
        answers.end();
    }
    // Only now, or the process might end before the answer is written.
    if stops {
        (state.stop)();
    }
}
