//! The system calls of kas and agentk per request, counted by strace.
//!
//! strace stops a program at each system call. This changes its times, and how many requests a thread handles each time it is
//! woken, so only the counts are reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use loadtest::{
    installation::stack::{
        StackConfig,
        process::{Signal, send_signal},
    },
    load::{
        self,
        client::LoadConnection,
        progress::Counter,
        report::{Table, number},
    },
};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStderr, Command},
};
use tokio_util::sync::CancellationToken;

use crate::{candidate::Candidate, instructions::repeat, nginx::Nginx};

/// The numbers of connections, each with one request at a time.
const CONNECTIONS: [u64; 2] = [1, 64];
/// The number of counted requests over all connections.
const REQUESTS: u64 = 3200;
/// The number of requests of each connection before that, which open the connections to the upstream.
const WARM_UP: u64 = 10;
const PATH: &str = "/one/200";
/// The number of system calls with a row of their own in the table.
const TOP: usize = 10;

/// The note before the table in the report.
pub(super) const NOTE: &str = "Counted by strace, which slows both programs: compare only the counts.";

/// The system calls of one program for one request with a response of 200 bytes.
#[derive(Debug, Serialize)]
pub(super) struct SystemCalls {
    program: &'static str,
    connections: u64,
    per_request: BTreeMap<String, f64>,
}

/// Counts the system calls and prints their table.
pub(super) async fn run(work: &Path, upstream: &Nginx, stop: &CancellationToken) -> anyhow::Result<()> {
    let Some(measured) = stop.run_until_cancelled(measure(work, upstream)).await else { return Ok(()) };
    let measured = measured?;
    ensure!(!measured.is_empty(), "no system calls were counted; the line before has the reason");
    Ok(load::print(&table(&measured))?)
}

/// Counts the system calls of kas and agentk with each number of connections. If strace is missing or may not attach, prints
/// that and returns nothing.
pub(super) async fn measure(work: &Path, upstream: &Nginx) -> anyhow::Result<Vec<SystemCalls>> {
    let directory = work.join("system-calls");
    let candidate = Candidate::kas_and_agentk("kas", &directory, &StackConfig::default(), upstream).await?;
    let (target, (kas, agentk)) = (candidate.target(PATH)?, candidate.processes());
    let request = &target.requests()[0];
    let mut measured = Vec::new();
    for connections in CONNECTIONS {
        let open = (0..connections).map(|_| LoadConnection::open(&target, 16 * 1024, Counter::default()));
        let mut open = try_join_all(open).await?;
        try_join_all(open.iter_mut().map(|connection| repeat(connection, request, WARM_UP))).await?;
        let mut attached = Vec::new();
        for (program, pid) in ["kas", "agentk"].into_iter().zip(kas.iter().chain(&agentk)) {
            let summary = directory.join(format!("{program}-{connections}.strace"));
            let Some(strace) = Strace::attach(program, *pid, summary).await? else { return Ok(Vec::new()) };
            attached.push((program, strace));
        }
        let each = REQUESTS / connections;
        try_join_all(open.iter_mut().map(|connection| repeat(connection, request, each))).await?;
        for (program, strace) in attached {
            let calls = strace.detach().await?;
            let per_request = calls.into_iter().map(|(name, calls)| (name, calls as f64 / REQUESTS as f64));
            measured.push(SystemCalls { program, connections, per_request: per_request.collect() });
        }
    }
    candidate.stop().await?;
    Ok(measured)
}

/// A strace that counts the system calls of all threads of a process. Dropping it detaches it.
struct Strace {
    child: Child,
    log: Lines<BufReader<ChildStderr>>,
    summary: PathBuf,
}

impl Strace {
    /// Attaches to the process and waits until the system calls are counted. If strace is missing or may not attach, prints
    /// that and returns `None`.
    async fn attach(program: &str, pid: u32, summary: PathBuf) -> anyhow::Result<Option<Self>> {
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-p", &pid.to_string(), "-o"]).arg(&summary);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // In its own process group, so that Ctrl-C reaches only this program.
        command.kill_on_drop(true).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                load::print(&format!(
                    "not measured: system calls, which need strace (apt-get install strace): {error}"
                ))?;
                return Ok(None);
            }
        };
        let mut log = BufReader::new(child.stderr.take().context("standard error is piped")?).lines();
        let mut last = String::new();
        while let Some(line) = log.next_line().await? {
            if line.contains(" attached") {
                return Ok(Some(Self { child, log, summary }));
            }
            last = line;
        }
        load::print(&format!(
            "not measured: system calls, because strace cannot attach to {program}: {last}. Run bench as root, or set the \
             sysctl kernel.yama.ptrace_scope to 0"
        ))?;
        Ok(None)
    }

    /// Detaches from the process and returns the number of calls of each system call.
    async fn detach(mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let pid = self.child.id().context("strace has not been waited for")?;
        send_signal(pid, Signal::INT).context("strace gets no signal")?;
        // A full pipe would block strace, which writes a line for each thread.
        while self.log.next_line().await?.is_some() {}
        self.child.wait().await?;
        let text = std::fs::read_to_string(&self.summary)
            .with_context(|| format!("strace wrote no {}", self.summary.display()))?;
        let calls = parse(&text);
        ensure!(!calls.is_empty(), "strace counted no system calls: {text:?}");
        Ok(calls)
    }
}

/// Parses the table of `strace -c`. Its fourth column has the calls, and its last one the name; the column of errors between
/// them may be empty.
fn parse(summary: &str) -> BTreeMap<String, u64> {
    let calls = summary.lines().filter_map(|line| {
        let mut columns = line.split_whitespace();
        let calls = columns.nth(3)?.parse().ok()?;
        let name = columns.next_back()?;
        (name != "total").then(|| (name.to_owned(), calls))
    });
    calls.collect()
}

/// Returns a table with a row for each of the most frequent system calls, and a column for each program and number of
/// connections.
pub(super) fn table(measured: &[SystemCalls]) -> Table {
    let sum = |name: &str| measured.iter().filter_map(|of| of.per_request.get(name)).sum::<f64>();
    let names: BTreeSet<_> =
        measured.iter().flat_map(|of| of.per_request.keys()).map(String::as_str).collect();
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by(|one, other| sum(other).total_cmp(&sum(one)));

    let columns: Vec<_> =
        measured.iter().map(|of| format!("{}, {} conns", of.program, of.connections)).collect();
    let mut table = Table::new(["calls per request"].into_iter().chain(columns.iter().map(String::as_str)));
    let row = |title: &str, names: &[&str]| -> Vec<String> {
        let sums = measured.iter().map(|of| {
            names.iter().map(|name| of.per_request.get(*name).copied().unwrap_or_default()).sum::<f64>()
        });
        [title.to_owned()].into_iter().chain(sums.map(number)).collect()
    };
    let (top, others) = names.split_at(names.len().min(TOP));
    for &name in top {
        table.row(row(name, &[name]));
    }
    if !others.is_empty() {
        table.row(row("others", others));
    }
    table.row(row("total", &names));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The summary that strace 6.1 wrote about a program with four threads.
    const SUMMARY: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 83.46    0.042658          73       577           clock_nanosleep
 12.16    0.006213          10       577           read
  4.38    0.002241          28        78        16 futex
------ ----------- ----------- --------- --------- ----------------
100.00    0.051112          41      1232        16 total
";

    #[test]
    fn calls_are_parsed_without_errors_and_total() {
        let expected = [("clock_nanosleep", 577), ("futex", 78), ("read", 577)];
        assert_eq!(parse(SUMMARY), BTreeMap::from(expected.map(|(name, calls)| (name.to_owned(), calls))));
        // Older versions leave the column usecs/call of the total empty.
        assert!(parse("100.00    0.000000                    29         1 total\n").is_empty());
        assert!(parse("strace: Process 1 detached\n").is_empty());
    }

    #[test]
    fn rare_calls_are_summed_up() {
        let of = |program, calls: &[(&str, f64)]| {
            let per_request = calls.iter().map(|(name, calls)| ((*name).to_owned(), *calls)).collect();
            SystemCalls { program, connections: 64, per_request }
        };
        let frequent: Vec<_> =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"].map(|name| (name, 2.0)).to_vec();
        let kas = of("kas", &[&[("brk", 0.25), ("close", 0.5)][..], &frequent].concat());
        let table = table(&[kas, of("agentk", &[("sendto", 3.0), ("a", 1.0)])]).to_string();
        let rows: Vec<Vec<_>> = table.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(rows[0][1..4], ["calls per request", "kas, 64 conns", "agentk, 64 conns"]);
        // The names with the highest sums are first, and those with the same sum are in order.
        assert_eq!([&rows[2][1..4], &rows[3][1..4]], [["a", "2.00", "1.00"], ["sendto", "0.000", "3.00"]]);
        assert_eq!(rows[rows.len() - 2][1..4], ["others", "2.75", "0.000"]);
        assert_eq!(rows[rows.len() - 1][1..4], ["total", "20.8", "4.00"]);
        assert_eq!(rows.len(), 2 + TOP + 2);
    }
}
