//! Streams that are larger than what may be kept of them in memory.
//!
//! `E2E_LARGE_MIB` says how large; `make e2e-large` sends a gibibyte each way.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use crate::support::{AGENT, Cluster, World, eventually};

/// What kas and agentk may take besides what they had before. With windows of a few MiB and buffers at each hop, it
/// does not depend on the size of the stream.
const GROWTH: u64 = 64 << 20;
const MIB: usize = 1 << 20;

/// The size of the streams.
fn size() -> usize {
    std::env::var("E2E_LARGE_MIB").map_or(64, |mib| mib.parse::<usize>().expect("a number of MiB")) * MIB
}

/// Peaks of memory, before.
struct Memory([u64; 2]);

impl Memory {
    fn of(world: &World) -> Self {
        Self([world.kas.process.peak_memory(), world.agent.process.peak_memory()])
    }

    /// Says what was sent, and how much more memory that took.
    fn judge(&self, world: &World, what: &str, bytes: usize, started: Instant) {
        let after = Self::of(world);
        let [kas, agentk] = [0, 1].map(|end| after.0[end] - self.0[end]);
        let seconds = started.elapsed().as_secs_f64();
        println!(
            "{what}: {} MiB in {seconds:.1} s; peak memory of kas {} MiB (+{}), of agentk {} MiB (+{})",
            bytes / MIB,
            after.0[0] >> 20,
            kas >> 20,
            after.0[1] >> 20,
            agentk >> 20
        );
        assert!(kas < GROWTH, "kas took {kas} bytes more");
        assert!(agentk < GROWTH, "agentk took {agentk} bytes more");
    }
}

/// Bytes that are no repetition of anything, the same each time.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, chunk: &mut [u8]) {
        for word in chunk.chunks_mut(8) {
            // SplitMix64.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut bits = self.0;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(bits ^ (bits >> 31)).to_le_bytes()[..word.len()]);
        }
    }

    /// Writes this much of it, and says its digest.
    fn write(mut self, to: &mut impl Write, bytes: usize) -> String {
        let (mut digest, mut chunk) = (Sha256::new(), vec![0; MIB]);
        for _ in 0..bytes / MIB {
            self.fill(&mut chunk);
            digest.update(&chunk);
            if to.write_all(&chunk).is_err() {
                break;
            }
        }
        hex(&digest.finalize())
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest and the length of all that comes.
fn digest(from: &mut impl Read) -> (String, usize) {
    let (mut digest, mut chunk, mut length) = (Sha256::new(), vec![0; MIB], 0);
    loop {
        let read = from.read(&mut chunk).unwrap();
        if read == 0 {
            return (hex(&digest.finalize()), length);
        }
        digest.update(&chunk[..read]);
        length += read;
    }
}

#[test]
fn large_streams_go_in_and_out_through_exec_with_bounded_memory() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("large-exec");
    namespace.pod("shell", "exec sleep 10000");
    let through = world.kubectl().within(&namespace.name);
    through.ok(&["exec", "shell", "--", "true"]);
    let memory = Memory::of(&world);

    let started = Instant::now();
    let mut into = through.command(&["exec", "--stdin", "shell", "--", "sha256sum"]);
    let mut into = into.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let sent = Noise(1).write(&mut into.stdin.take().unwrap(), size());
    let said = into.wait_with_output().unwrap();
    assert!(said.status.success());
    assert_eq!(String::from_utf8_lossy(&said.stdout).split(' ').next(), Some(&*sent));
    memory.judge(&world, "exec, in", size(), started);

    let started = Instant::now();
    let zeros = format!("head -c {} /dev/zero", size());
    let mut out = through.command(&["exec", "shell", "--", "sh", "-c", &zeros]);
    let mut out = out.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let received = digest(out.stdout.as_mut().unwrap());
    assert!(out.wait().unwrap().success());
    assert_eq!(received, digest(&mut std::io::repeat(0).take(size() as u64)));
    memory.judge(&world, "exec, out", size(), started);
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

/// As `cp` does it: an archive, out and in at once.
#[test]
fn a_large_stream_goes_both_ways_at_once_with_bounded_memory() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = World::of_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("large-cat");
    namespace.pod("shell", "exec sleep 10000");
    let through = world.kubectl().within(&namespace.name);
    through.ok(&["exec", "shell", "--", "true"]);
    let memory = Memory::of(&world);

    let started = Instant::now();
    let mut cat = through.command(&["exec", "--stdin", "shell", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    let sender = thread::spawn(move || Noise(2).write(&mut stdin, size()));
    let (received, length) = digest(&mut stdout);
    assert_eq!((received, length), (sender.join().unwrap(), size()));
    assert!(cat.wait().unwrap().success());
    memory.judge(&world, "exec, both ways", 2 * size(), started);
}

/// What a cluster of many objects answers to a list, from an API server that makes it up as it goes.
#[test]
fn a_large_list_passes_with_bounded_memory() {
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let cluster = serde_json::json!({
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.local_addr().unwrap())}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    });
    std::fs::write(kubeconfig.path(), cluster.to_string()).unwrap();
    let bytes = size().max(100 * MIB);
    let serve = move |mut stream: std::net::TcpStream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read(&mut byte).unwrap_or(0) == 0 {
                return;
            }
            head.push(byte[0]);
        }
        let list = head.starts_with(b"GET /api/v1/configmaps");
        let length = if list { bytes } else { 0 };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        Noise(3).write(&mut stream, length);
    };
    thread::spawn(move || {
        while let Ok((stream, _)) = api.accept() {
            thread::spawn(move || serve(stream));
        }
    });

    let world = World::start(kubeconfig.path(), |_, _| {});
    let memory = Memory::of(&world);
    let started = Instant::now();
    let url = world.kas.url(&format!("/agents/{AGENT}/kubernetes/api/v1/configmaps"));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--user-agent", "e2e", &url, "--header"]);
    curl.arg(format!("Authorization: Bearer {}", world.tokens.ops.expose_secret()));
    let mut curl = curl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let received = digest(curl.stdout.as_mut().unwrap());
    assert!(curl.wait().unwrap().success());
    assert_eq!(received, (Noise(3).write(&mut std::io::sink(), bytes), bytes));
    memory.judge(&world, "list", bytes, started);
}
