//! Streams that are larger than the memory that kas and agentk may use for them.
//!
//! `E2E_LARGE_MIB` is the size of each stream; `make e2e-large` sends a gibibyte each way.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};

use crate::support::{AGENT, Cluster, Installation, eventually};

/// The limit for the growth of kas and agentk, each. With windows of a few MiB and buffers at each hop, the growth
/// does not depend on the size of the stream.
const GROWTH: u64 = 64 << 20;
const MIB: usize = 1 << 20;

/// Returns the size of the streams in bytes.
fn stream_size() -> usize {
    std::env::var("E2E_LARGE_MIB").map_or(64, |mib| mib.parse::<usize>().expect("a number of MiB")) * MIB
}

/// The peak memory of kas and agentk at one moment, in bytes.
struct PeakMemory([u64; 2]);

impl PeakMemory {
    fn read(world: &Installation) -> Self {
        Self([world.kas.process.peak_memory(), world.agent.process.peak_memory()])
    }

    /// Prints the throughput and the growth of both processes, and asserts that the growth is below [`GROWTH`].
    fn assert_growth(&self, world: &Installation, what: &str, bytes: usize, started: Instant) {
        let after = Self::read(world);
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
        assert!(kas < GROWTH, "kas used {kas} more bytes");
        assert!(agentk < GROWTH, "agentk used {agentk} more bytes");
    }
}

/// A generator of incompressible bytes, seeded so that each run is the same.
struct RandomBytes(u64);

impl RandomBytes {
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

    /// Writes this many bytes and returns their digest.
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

/// Reads to the end and returns the digest and the length.
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
fn large_exec_streams_use_bounded_memory() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("large-exec");
    namespace.pod("shell", "exec sleep 10000");
    let through = world.kubectl().in_namespace(&namespace.name);
    through.ok(&["exec", "shell", "--", "true"]);
    let memory = PeakMemory::read(&world);

    let started = Instant::now();
    let mut into = through.command(&["exec", "--stdin", "shell", "--", "sha256sum"]);
    let mut into = into.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let sent = RandomBytes(1).write(&mut into.stdin.take().unwrap(), stream_size());
    let output = into.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout).split(' ').next(), Some(&*sent));
    memory.assert_growth(&world, "exec, in", stream_size(), started);

    let started = Instant::now();
    let zeros = format!("head -c {} /dev/zero", stream_size());
    let mut out = through.command(&["exec", "shell", "--", "sh", "-c", &zeros]);
    let mut out = out.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let received = digest(out.stdout.as_mut().unwrap());
    assert!(out.wait().unwrap().success());
    assert_eq!(received, digest(&mut std::io::repeat(0).take(stream_size() as u64)));
    memory.assert_growth(&world, "exec, out", stream_size(), started);
    eventually("nothing is in flight", || world.in_flight() == 0.0);
}

/// `kubectl cp` streams an archive in the same way.
#[test]
fn large_bidirectional_stream_uses_bounded_memory() {
    let Some(cluster) = Cluster::or_skip() else { return };
    let world = Installation::with_cluster(&cluster.kubeconfig);
    let namespace = cluster.namespace("large-cat");
    namespace.pod("shell", "exec sleep 10000");
    let through = world.kubectl().in_namespace(&namespace.name);
    through.ok(&["exec", "shell", "--", "true"]);
    let memory = PeakMemory::read(&world);

    let started = Instant::now();
    let mut cat = through.command(&["exec", "--stdin", "shell", "--", "cat"]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    let sender = thread::spawn(move || RandomBytes(2).write(&mut stdin, stream_size()));
    let (received, length) = digest(&mut stdout);
    assert_eq!((received, length), (sender.join().unwrap(), stream_size()));
    assert!(cat.wait().unwrap().success());
    memory.assert_growth(&world, "exec, both ways", 2 * stream_size(), started);
}

/// A fake API server generates the list while it is read.
#[test]
fn large_list_uses_bounded_memory() {
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let cluster = serde_json::json!({
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.local_addr().unwrap())}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    });
    std::fs::write(kubeconfig.path(), cluster.to_string()).unwrap();
    let bytes = stream_size().max(100 * MIB);
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
        RandomBytes(3).write(&mut stream, length);
    };
    thread::spawn(move || {
        while let Ok((stream, _)) = api.accept() {
            thread::spawn(move || serve(stream));
        }
    });

    let world = Installation::start(kubeconfig.path(), |_, _| {});
    let memory = PeakMemory::read(&world);
    let started = Instant::now();
    let url = world.kas.url(&format!("/agents/{AGENT}/kubernetes/api/v1/configmaps"));
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--user-agent", "e2e", &url, "--header"]);
    curl.arg(format!("Authorization: Bearer {}", world.tokens.ops.expose_secret()));
    let mut curl = curl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let received = digest(curl.stdout.as_mut().unwrap());
    assert!(curl.wait().unwrap().success());
    assert_eq!(received, (RandomBytes(3).write(&mut std::io::sink(), bytes), bytes));
    memory.assert_growth(&world, "list", bytes, started);
}
