//! `loadtest graph`: what runs in a simulated cluster with many objects.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use proto::graph::{GraphStatus, ResourceState};
use serde::Serialize;
use testing::simulator::{LABEL, Simulator};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    installation::stack::{
        AGENT, KasProcess, StackConfig, prepare_directory,
        process::{cpu_of_all_threads, peak, resident},
        write_file,
    },
    load::{
        self,
        options::write_json,
        report::{Table, number},
        target::read_token,
    },
};

/// The time for one step.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest request, in seconds: that of a viewer lasts as long as all cases.
const CURL_LIMIT: &str = "1800";
/// The time after which allocations of the start are freed, and new viewers have their snapshot.
const SETTLE: Duration = Duration::from_secs(5);
/// The objects of one page, which is the most.
const PAGE: usize = 5000;
/// The name of the file with the caller's header.
const HEADER: &str = "caller-header";

/// Measure the graph of a simulated cluster with many objects
///
/// Starts kas and agentk on this machine, and a simulated cluster in this process. curl is the caller.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  loadtest graph\n  loadtest graph --others 90000")]
pub struct Graph {
    /// Number of pods
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pods: u32,
    /// Bytes of one pod, approximately
    #[arg(long, value_name = "BYTES", default_value_t = 19_000, value_parser = clap::value_parser!(u32).range(1500..=500_000))]
    pod_bytes: u32,
    /// Number of other objects
    #[arg(long, value_name = "NUMBER", default_value_t = 12_000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    others: u32,
    /// Changes of pods in each second
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Duration of the changes, with one viewer and with many
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = settings::duration::parse)]
    duration: Duration,
    /// Number of viewers in the last case
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=64))]
    viewers: u32,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result; its JSON is this struct.
#[derive(Debug, Default, Serialize)]
struct GraphReport {
    /// The loaded objects.
    objects: u64,
    /// The time from the first request until all pods are there.
    pods_seconds: f64,
    /// The time until all objects are there.
    all_seconds: f64,
    /// The growth of agentk's memory with all objects.
    growth_mib: f64,
    /// The largest growth of agentk's memory.
    peak_growth_mib: f64,
    /// The list of all pods through the tunnel, as kubectl requests it.
    list: Transfer,
    /// The page of 5,000 objects.
    page: Transfer,
    /// The same compressed.
    compressed_page: Transfer,
    /// The share of a core that agentk uses with changes and one viewer.
    one_viewer_cpu: f64,
    /// The same with many viewers.
    many_viewers_cpu: f64,
    /// The time from a change in the cluster until the viewer has it, in milliseconds: the median and the 99th percentile.
    latency_ms: (f64, f64),
    /// The changes whose latency was measured. The graph sends the last one of several changes of a pod.
    seen: usize,
}

/// One response.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Transfer {
    seconds: f64,
    mib: f64,
}

/// The running programs.
struct Workplace<'a> {
    options: &'a Graph,
    simulator: Arc<Simulator>,
    kas: KasProcess,
    agentk: u32,
    /// The file with the header of the caller's credential.
    header: PathBuf,
}

/// A caller that follows all pods, and notes when it sees the changes.
struct Viewer {
    curl: Child,
    _reader: AbortOnDropHandle<()>,
    /// The times at which labels were seen.
    seen: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Graph {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let temporary = tempfile::tempdir()?;
        let directory = prepare_directory(self.logs.as_deref().unwrap_or_else(|| temporary.path()))?;
        match stop.run_until_cancelled(self.measure(&directory)).await {
            Some(report) => self.print(&report?),
            None => Ok(load::print(&"stopped early")?),
        }
    }

    async fn measure(&self, directory: &Path) -> anyhow::Result<GraphReport> {
        let simulator = Arc::new(Simulator::start(([127, 0, 0, 1], 0).into())?);
        simulator.fill(self.pods as usize, self.pod_bytes as usize, self.others as usize);
        let setup = StackConfig::default();
        let kas = KasProcess::start(directory, &setup).await?;
        let agentk = kas.start_agentk(&setup, simulator.address(), "/version").await?;
        let token = read_token(&directory.join("caller-token"))?;
        write_file(directory, HEADER, &format!("Authorization: Bearer {}\n", token.trim()))?;
        let header = directory.join(HEADER);
        let workplace = Workplace { options: self, simulator, kas, agentk: agentk.pid(), header };
        let mut report = GraphReport::default();
        workplace.load(&mut report).await?;
        report.list = workplace.transfer("kubernetes/api/v1/pods", false).await?;
        let page = format!("graph/v1/objects?limit={PAGE}");
        report.page = workplace.transfer(&page, false).await?;
        report.compressed_page = workplace.transfer(&page, true).await?;
        workplace.follow(&mut report).await?;
        Ok(report)
    }

    fn print(&self, report: &GraphReport) -> anyhow::Result<()> {
        let mut table = Table::new(["case", "measured"]);
        let seconds = |value: f64| format!("{} s", number(value));
        let mebibytes = |value: f64| format!("{} MiB", number(value));
        let percent = |value: f64| format!("{} % of a core", number(value * 100.0));
        let transfer = |of: Transfer| format!("{} MiB in {} s", number(of.mib), number(of.seconds));
        let Self { pods, rate, viewers, .. } = self;
        let (median, slow) = report.latency_ms;
        for (case, measured) in [
            (format!("{pods} pods, from the first request"), seconds(report.pods_seconds)),
            (format!("all {} objects, from the first request", report.objects), seconds(report.all_seconds)),
            ("growth of agentk".to_owned(), mebibytes(report.growth_mib)),
            ("growth of agentk, at most".to_owned(), mebibytes(report.peak_growth_mib)),
            ("all pods as JSON through the tunnel, as for kubectl".to_owned(), transfer(report.list)),
            (format!("page of {PAGE} objects"), transfer(report.page)),
            (format!("page of {PAGE} objects, compressed"), transfer(report.compressed_page)),
            (format!("{rate} changes/s, one viewer"), percent(report.one_viewer_cpu)),
            (format!("{rate} changes/s, {viewers} viewers"), percent(report.many_viewers_cpu)),
            (
                format!("change until the viewer has it, of {} changes", report.seen),
                format!("p50 {} ms, p99 {} ms", number(median), number(slow)),
            ),
        ] {
            table.row([case, measured]);
        }
        load::print(&table)?;
        if let Some(file) = &self.json {
            write_json(file, report)?;
        }
        Ok(())
    }
}

impl Workplace<'_> {
    /// Lets agentk load everything.
    async fn load(&self, report: &mut GraphReport) -> anyhow::Result<()> {
        sleep(SETTLE).await;
        let before = resident(self.agentk)?;
        let began = Instant::now();
        loop {
            let status: GraphStatus = serde_json::from_slice(&self.get("graph/v1/status").await?)?;
            let synced = |kind: &str| {
                let mut known = status.resources.iter();
                known.any(|resource| resource.kind == kind && resource.state == ResourceState::Synced)
            };
            if synced("Pod") && report.pods_seconds == 0.0 {
                report.pods_seconds = began.elapsed().as_secs_f64();
            }
            if ["Pod", "ConfigMap", "Service"].into_iter().all(synced) {
                report.all_seconds = began.elapsed().as_secs_f64();
                report.objects = status.objects;
                break;
            }
            ensure!(began.elapsed() < LIMIT, "the objects are not loaded in time: {status:?}");
            sleep(Duration::from_millis(20)).await;
        }
        sleep(SETTLE).await;
        let mebibytes = |kib: u64| (kib as f64 - before as f64) / 1024.0;
        report.growth_mib = mebibytes(resident(self.agentk)?);
        report.peak_growth_mib = mebibytes(peak(self.agentk)?);
        Ok(())
    }

    /// Changes pods while one caller follows them, and then while many do.
    async fn follow(&self, report: &mut GraphReport) -> anyhow::Result<()> {
        let first = self.viewer()?;
        sleep(SETTLE).await;
        let (written, used) = self.change("one").await?;
        report.one_viewer_cpu = used;
        let seen = std::mem::take(&mut *first.seen.lock());
        let mut latencies: Vec<f64> = written
            .iter()
            .filter_map(|(label, at)| Some(seen.get(label)?.duration_since(*at).as_secs_f64() * 1000.0))
            .collect();
        ensure!(!latencies.is_empty(), "the viewer saw no change");
        latencies.sort_by(f64::total_cmp);
        let quantile = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
        report.latency_ms = (quantile(0.5), quantile(0.99));
        report.seen = latencies.len();

        let others = (1..self.options.viewers).map(|_| self.viewer());
        let mut others = others.collect::<anyhow::Result<Vec<Viewer>>>()?;
        sleep(SETTLE * 2).await;
        (_, report.many_viewers_cpu) = self.change("many").await?;
        for viewer in &mut others {
            ensure!(viewer.curl.try_wait()?.is_none(), "a viewer has lost its stream");
        }
        Ok(())
    }

    /// Changes pods. Returns the times of the changes by their labels, and the share of a core that agentk has used.
    async fn change(&self, prefix: &str) -> anyhow::Result<(HashMap<String, Instant>, f64)> {
        let mut ticks = interval(Duration::from_secs(1) / self.options.rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (began, used) = (Instant::now(), cpu_of_all_threads(self.agentk)?);
        let mut written = HashMap::new();
        let mut change = 0;
        while began.elapsed() < self.options.duration {
            ticks.tick().await;
            let label = format!("{prefix}-{change}");
            written.insert(label.clone(), Instant::now());
            self.simulator.label_pod(change % self.options.pods as usize, &label);
            change += 1;
        }
        let share = cpu_of_all_threads(self.agentk)?.saturating_sub(used).as_secs_f64()
            / began.elapsed().as_secs_f64();
        // The last changes arrive.
        sleep(Duration::from_secs(2)).await;
        Ok((written, share))
    }

    fn viewer(&self) -> anyhow::Result<Viewer> {
        let mut command = self.curl("graph/v1/watch?kind=Pod");
        let mut curl =
            command.arg("--no-buffer").stdout(Stdio::piped()).spawn().context("cannot run curl")?;
        let output = curl.stdout.take().context("curl has no output")?;
        let seen = Arc::new(Mutex::new(HashMap::new()));
        let times = Arc::clone(&seen);
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            let start = format!("\"{LABEL}\":\"");
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((label, _)) = line.split_once(&start).and_then(|(_, rest)| rest.split_once('"')) {
                    times.lock().insert(label.to_owned(), Instant::now());
                }
            }
        });
        Ok(Viewer { curl, _reader: AbortOnDropHandle::new(reader), seen })
    }

    async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        let output = self.curl(path).output().await.context("cannot run curl")?;
        let body = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{path}: {body}{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    }

    /// Measures a response.
    async fn transfer(&self, path: &str, compressed: bool) -> anyhow::Result<Transfer> {
        let mut command = self.curl(path);
        command.args(["--output", "/dev/null", "--write-out", "%{time_total} %{size_download}"]);
        if compressed {
            command.args(["--header", "Accept-Encoding: gzip"]);
        }
        let output = command.output().await.context("cannot run curl")?;
        ensure!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (seconds, bytes) = text.split_once(' ').context("curl has printed no time")?;
        Ok(Transfer { seconds: seconds.parse()?, mib: bytes.parse::<f64>()? / 1_048_576.0 })
    }

    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command
            .args([
                "--silent",
                "--show-error",
                "--fail-with-body",
                "--max-time",
                CURL_LIMIT,
                "--header",
                &format!("@{}", self.header.display()),
            ])
            .arg(format!("http://{}/agents/{AGENT}/{path}", self.kas.public))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}
