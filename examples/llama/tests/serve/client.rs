//! A client of a few lines: it can send what no library would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpSocket;

pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|why| panic!("{why}: {}", self.body))
    }

    /// The data of server-sent events.
    pub(crate) fn events(&self) -> Vec<&str> {
        assert!(self.head.contains("text/event-stream"), "{}", self.head);
        let events = self.body.split_terminator("\n\n");
        events.map(|event| event.strip_prefix("data: ").expect("an event of one line")).collect()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// The bytes of a narrow connection's buffer on either side. The system takes up to twice as many.
pub(crate) const NARROW: u32 = 1 << 14;

/// A connection that takes few bytes before the client reads them.
pub(crate) fn connect_narrow(address: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(NARROW).expect("a size");
        socket.connect(address).await.expect("a connection").into_std().expect("a connection")
    });
    stream.set_nonblocking(false).expect("a blocking connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

pub(crate) fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &[&str], body: &[u8]) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    // A server that refuses by the head alone may have closed its side.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

pub(crate) fn receive(stream: &mut TcpStream) -> Response {
    let mut bytes = Vec::new();
    if let Err(why) = stream.read_to_end(&mut bytes) {
        // It was refused before all of it was read.
        assert!(!bytes.is_empty(), "{why}");
    }
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let body = match head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => unchunked(body),
        false => body.to_owned(),
    };
    Response { status, head: head.to_owned(), body }
}

fn unchunked(mut rest: &str) -> String {
    let mut out = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk");
        let size = usize::from_str_radix(size, 16).expect("its size");
        if size == 0 {
            return out;
        }
        out += &after[..size];
        rest = after[size..].strip_prefix("\r\n").expect("its end");
    }
}

pub(crate) fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &[u8],
) -> Response {
    let mut stream = connect(address);
    send(&mut stream, method, path, headers, body);
    receive(&mut stream)
}

pub(crate) const JSON: &str = "Content-Type: application/json";

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    request(address, "POST", path, &[JSON], body.to_string().as_bytes())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    request(address, "GET", path, &[], b"")
}
