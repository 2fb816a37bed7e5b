//! Responses of Prometheus that are larger than the memory that kas and agentk may use for them.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};

use secrecy::ExposeSecret as _;

use crate::support::{AGENT, Installation, Process, run};

const SIZE: usize = 300 << 20;
/// The limit for the growth of memory, in MiB: far below [`SIZE`], and above the buffers of a debug build.
const BOUND: u64 = 64;

#[test]
fn response_of_300_mib_uses_bounded_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(|| stream_response(connection.unwrap()));
        }
    });
    let world = Installation::with_prometheus(&url);
    let url = world.kas.url(&format!("/agents/{AGENT}/prometheus/api/v1/query_range?query=everything"));
    let user = format!("ops:{}", world.tokens.ops.expose_secret());
    let curl = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "100", "--output", "/dev/null"]);
        command.args(["--user", &user, &url]).args(arguments);
        command
    };
    let processes = [("kas", &world.kas.process), ("agentk", &world.agent.process)];
    let before = processes.map(|(_, process)| process.memory("VmRSS") >> 20);

    // A slow reader must not make kas or agentk buffer the rest of its response.
    let _slow = Process::start("a slow reader", &mut curl(&["--limit-rate", "10k"]));
    let fast = run(&mut curl(&["--write-out", "%{http_code} %{size_download}"]), b"");
    assert_eq!(String::from_utf8_lossy(&fast.stdout), format!("200 {SIZE}"));
    for ((name, process), before) in processes.into_iter().zip(before) {
        let most = process.memory("VmHWM") >> 20;
        println!("{name}: {before} MiB before, {most} MiB at most");
        assert!(
            most < before + BOUND,
            "{name} had {before} MiB, and {most} MiB while it passed on {SIZE} bytes"
        );
    }
}

/// Responds to any request with [`SIZE`] bytes that resemble JSON.
fn stream_response(mut connection: TcpStream) {
    let mut request = [0; 4096];
    assert!(connection.read(&mut request).unwrap() > 0);
    let piece = "[1700000000.123,\"1234567890.5\"],".repeat(2048);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {SIZE}\r\n\r\n");
    let mut left = SIZE;
    let mut written = connection.write_all(head.as_bytes());
    // The slow reader closes its connection before the end.
    while left > 0 && written.is_ok() {
        let next = left.min(piece.len());
        written = connection.write_all(&piece.as_bytes()[..next]);
        left -= next;
    }
}
