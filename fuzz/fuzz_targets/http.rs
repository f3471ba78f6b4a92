//! Any bytes are a request in the control socket's HTTP, or are refused by an answer that is valid HTTP. The result
//! does not depend on the pieces in which the bytes come.
#![no_main]

#[macro_use]
mod reach;

use std::io::Read;

use reach::Reached;

/// The program has no library, so its file is compiled here once more.
#[allow(dead_code, reason = "the rest is the server's")]
#[path = "."]
mod control {
    #[path = "../../crates/blkmq-cli/src/control/http.rs"]
    pub(crate) mod http;
    #[path = "../../crates/blkmq-cli/src/control/seats.rs"]
    mod seats;

    pub(crate) mod schema {
        /// Why a request was not granted.
        #[derive(serde::Serialize)]
        pub(crate) struct Refusal {
            pub(crate) error: String,
        }
    }
}

use control::http::{Unread, read};

/// Reads this many bytes at a time.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.0.len().min(self.1).min(buffer.len());
        buffer[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        Ok(length)
    }
}

fn run(bytes: &[u8], reached: &mut Reached) {
    let whole = read(&mut Pieces(bytes, usize::MAX));
    match &whole {
        Ok(request) => {
            assert!(request.path.starts_with('/') && !request.path.contains('?') && !request.method.is_empty());
            assert_eq!(read(&mut Pieces(bytes, 3)), whole, "pieces make no difference");
            reached.add("requests", 1);
            reached.add("with a body", usize::from(!request.body.is_empty()));
        }
        Err(Unread::Wrong(answer)) => {
            let mut text = Vec::new();
            answer.write(&mut text).expect("it goes to memory");
            let mut headers = [httparse::EMPTY_HEADER; 16];
            let mut parsed = httparse::Response::new(&mut headers);
            assert!(parsed.parse(&text).expect("it is HTTP").is_complete());
            assert!(parsed.code.is_some_and(|code| (400..500).contains(&code)));
            reached.add("refused", 1);
        }
        Err(Unread::Gone) => assert!(bytes.is_empty()),
    }
}

target!("http", run, [("requests", 6), ("with a body", 2), ("refused", 5)], &[u8]);
