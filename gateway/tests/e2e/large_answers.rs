//! Answers that are larger than any memory should have to be (item 67 of the fault list).

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
};

use secrecy::ExposeSecret as _;

use crate::support::{AGENT, Process, World, run};

const SIZE: usize = 300 << 20;
/// Far below what is sent, and above what buffers, and a debug build, may take; in MiB.
const BOUND: u64 = 64;

#[test]
fn an_answer_of_300_mib_is_streamed_with_flat_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(|| pour(connection.unwrap()));
        }
    });
    let world = World::of_prometheus(&url);
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

    // Somebody who reads hardly anything makes nobody keep the rest.
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

/// Answers what looks like JSON to whatever is asked.
fn pour(mut connection: TcpStream) {
    let mut request = [0; 4096];
    assert!(connection.read(&mut request).unwrap() > 0);
    let piece = "[1700000000.123,\"1234567890.5\"],".repeat(2048);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {SIZE}\r\n\r\n");
    let mut left = SIZE;
    let mut written = connection.write_all(head.as_bytes());
    // A reader who leaves is no failure of this one.
    while left > 0 && written.is_ok() {
        let next = left.min(piece.len());
        written = connection.write_all(&piece.as_bytes()[..next]);
        left -= next;
    }
}
