//! `loadtest gitops`: manifests from Git with a real cluster.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Serialize;
use serde_json::Value;
use tokio::{process::Command, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    installation::stack::{
        self, AGENT, KasProcess, StackConfig, prepare_directory,
        process::{peak, resident},
    },
    load::{
        self,
        options::write_json,
        report::{Table, number},
    },
};

/// The namespaces that are created and deleted: that of agentk and of its objects, and that of kubectl.
const NAMESPACES: [&str; 2] = ["loadtest-gitops", "loadtest-kubectl"];
/// The time between two looks of kas at the repository.
const INTERVAL: &str = "200ms";
/// The time for one case.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest value of an object, in bytes.
const VALUE: usize = 100;

/// Measure manifests from Git with a real cluster, which two namespaces are added to and removed from
///
/// Starts kas and agentk on this machine, with a repository that agentk applies to the cluster. kubectl applies the same files.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  loadtest gitops --kubeconfig ~/.kube/config --objects 2000\n  \
                       loadtest gitops --kubeconfig ~/.kube/config --objects 2000 --object-bytes 10000")]
pub struct Gitops {
    /// The kubeconfig of the cluster
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// Number of objects
    #[arg(long, value_name = "NUMBER", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    objects: u32,
    /// Bytes of one object, approximately
    #[arg(long, value_name = "BYTES", default_value_t = 500, value_parser = clap::value_parser!(u32).range(100..=500_000))]
    object_bytes: u32,
    /// Number of files
    #[arg(long, value_name = "NUMBER", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1000))]
    files: u32,
    /// Time for which agentk rests before its memory is read
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = settings::duration::parse)]
    rest: Duration,
    /// Keep the logs of all programs in this directory
    #[arg(long, value_name = "DIRECTORY")]
    logs: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The result; its JSON is this struct.
#[derive(Debug, Default, Serialize)]
struct GitopsReport {
    objects: u32,
    /// The size of all files together.
    manifests_mib: f64,
    /// The time of `kubectl apply --server-side`.
    kubectl_seconds: f64,
    /// The time from the commit until agentk reports that it is applied. kas looks every 200 ms.
    first_sync_seconds: f64,
    /// The time in which agentk has applied it.
    engine_seconds: f64,
    /// The requests of a sync that finds nothing to do.
    no_op_requests: u64,
    /// Those of them that write.
    no_op_writes: u64,
    /// The requests of a sync with one changed object.
    one_change_requests: u64,
    /// The time from a commit with one changed object until the cluster has it.
    one_change_seconds: f64,
    /// The time until a change with kubectl is reverted.
    drift_seconds: f64,
    /// The largest growth of agentk's memory in the first sync.
    peak_growth_mib: f64,
    /// The growth of agentk's memory after a rest.
    rest_growth_mib: f64,
}

/// The requests of agentk to the cluster, without those that renew the Lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestCounts {
    all: u64,
    writes: u64,
}

/// The repository, and the cluster.
struct Workplace<'a> {
    options: &'a Gitops,
    repository: PathBuf,
}

impl Gitops {
    /// Runs to the end, or until `stop` is cancelled.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let temporary = tempfile::tempdir()?;
        let directory = prepare_directory(self.logs.as_deref().unwrap_or_else(|| temporary.path()))?;
        let workplace = Workplace { options: &self, repository: temporary.path().join("repository") };
        for namespace in NAMESPACES {
            workplace.kubectl(&["create", "namespace", namespace]).await?;
        }
        let measured = stop.run_until_cancelled(workplace.measure(&directory)).await;
        let delete = [&["delete", "namespace", "--wait=false"], &NAMESPACES[..]].concat();
        workplace.kubectl(&delete).await?;
        let Some(report) = measured.transpose()? else {
            load::print(&"stopped early")?;
            return Ok(());
        };
        self.print(&report)
    }

    fn print(&self, report: &GitopsReport) -> anyhow::Result<()> {
        let mut table = Table::new(["case", "measured"]);
        let seconds = |value: f64| format!("{} s", number(value));
        let mebibytes = |value: f64| format!("{} MiB", number(value));
        let ratio = report.engine_seconds / report.kubectl_seconds;
        let GitopsReport { objects, manifests_mib, .. } = report;
        for (case, measured) in [
            (
                format!("kubectl apply --server-side, {objects} objects, {} MiB", number(*manifests_mib)),
                seconds(report.kubectl_seconds),
            ),
            ("first sync in agentk".to_owned(), seconds(report.engine_seconds)),
            ("  against kubectl".to_owned(), format!("{} ×", number(ratio))),
            ("first sync, from the commit".to_owned(), seconds(report.first_sync_seconds)),
            ("requests of a sync without a change".to_owned(), report.no_op_requests.to_string()),
            ("  of them writes".to_owned(), report.no_op_writes.to_string()),
            ("requests of a sync with one changed object".to_owned(), report.one_change_requests.to_string()),
            ("one changed object, from the commit".to_owned(), seconds(report.one_change_seconds)),
            ("drift of one object, until it is reverted".to_owned(), seconds(report.drift_seconds)),
            ("growth of agentk, at most".to_owned(), mebibytes(report.peak_growth_mib)),
            ("growth of agentk, at rest".to_owned(), mebibytes(report.rest_growth_mib)),
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
    async fn measure(&self, directory: &Path) -> anyhow::Result<GitopsReport> {
        let mut report = GitopsReport { objects: self.options.objects, ..GitopsReport::default() };
        let manifests = self.repository.join("manifests");
        fs::create_dir_all(&manifests)?;
        let bytes = self.write_manifests(&manifests, self.options.objects, self.options.files)?;
        report.manifests_mib = bytes as f64 / 1_048_576.0;
        let began = Instant::now();
        let files = manifests.to_string_lossy().into_owned();
        let apply = ["apply", "--server-side", "--namespace", NAMESPACES[1], "--filename", &files];
        self.kubectl(&apply).await?;
        report.kubectl_seconds = began.elapsed().as_secs_f64();

        // One object first, so that the memory of everything that does not depend on their number is there.
        fs::remove_dir_all(&manifests)?;
        fs::create_dir_all(&manifests)?;
        self.write_manifests(&manifests, 1, 1)?;
        self.git(&["init", "--quiet", "--initial-branch=main"]).await?;
        let configuration = self.repository.join(format!(".gitlab/agents/{AGENT}"));
        fs::create_dir_all(&configuration)?;
        let text = format!(
            "gitops:\n  manifest_projects:\n  - {{paths: [{{glob: '/manifests/*.yaml'}}], default_namespace: {}, interval: {INTERVAL}}}\n",
            NAMESPACES[0]
        );
        fs::write(configuration.join("config.yaml"), text)?;
        self.commit().await?;
        let repository = serde_json::json!({"poll_period": "1s", "repository": {"url": self.repository}});
        let gitops = serde_json::json!({"min_interval": INTERVAL});
        let setup =
            StackConfig { configuration: Some(repository), gitops: Some(gitops), ..StackConfig::default() };
        let kas = KasProcess::start(directory, &setup).await?;
        let kubeconfig = fs::read_to_string(&self.options.kubeconfig).context("the kubeconfig")?;
        let namespace = ["--pod-namespace", NAMESPACES[0]];
        let token = kas.agent_token();
        let agentk = kas.spawn_agentk("agentk", &setup, &token, Some(&kubeconfig), &namespace).await?;
        self.wait_for_objects(1).await?;
        let observability = kas.agentk_observability("agentk").await?;
        sleep(Duration::from_secs(2)).await;
        let (syncs, _) = next_sync(observability, 0).await?;
        let before = resident(agentk.pid())?;

        fs::remove_dir_all(&manifests)?;
        fs::create_dir_all(&manifests)?;
        self.write_manifests(&manifests, self.options.objects, self.options.files)?;
        let began = Instant::now();
        self.commit().await?;
        // kubectl would take time from it.
        let (syncs, _) = next_sync(observability, syncs).await?;
        let status = self.wait_for_objects(u64::from(self.options.objects)).await?;
        report.first_sync_seconds = began.elapsed().as_secs_f64();
        report.engine_seconds = status["history"][0]["duration"].as_f64().unwrap_or(f64::NAN) / 1000.0;
        let mebibytes = |kib: u64| (kib as f64 - before as f64) / 1024.0;
        report.peak_growth_mib = mebibytes(peak(agentk.pid())?);

        // The second periodic look: the first one writes into the status that there was nothing to do.
        let (syncs, before_no_op) = next_sync(observability, syncs).await?;
        let (syncs, before_change) = next_sync(observability, syncs).await?;
        let no_op = before_change - before_no_op;
        (report.no_op_requests, report.no_op_writes) = (no_op.all, no_op.writes);

        fs::write(manifests.join("0.yaml"), self.file(0, "changed"))?;
        let began = Instant::now();
        self.commit().await?;
        self.wait_for_value("changed").await?;
        report.one_change_seconds = began.elapsed().as_secs_f64();
        let (_, after_change) = next_sync(observability, syncs).await?;
        report.one_change_requests = (after_change - before_change).all;

        let patch = ["patch", "configmap", "load-0", "--namespace", NAMESPACES[0], "--patch"];
        self.kubectl(&[&patch[..], &[r#"{"data":{"version":"by hand"}}"#]].concat()).await?;
        let began = Instant::now();
        self.wait_for_value("changed").await?;
        report.drift_seconds = began.elapsed().as_secs_f64();

        sleep(self.options.rest).await;
        report.rest_growth_mib = mebibytes(resident(agentk.pid())?);
        Ok(report)
    }

    /// Writes the files, and returns their bytes.
    fn write_manifests(&self, directory: &Path, objects: u32, files: u32) -> anyhow::Result<usize> {
        let mut bytes = 0;
        for file in 0..files {
            let numbers = (file..objects).step_by(files as usize);
            let text: String = numbers.map(|number| self.object(number, "first")).collect();
            fs::write(directory.join(format!("{file}.yaml")), &text)?;
            bytes += text.len();
        }
        Ok(bytes)
    }

    /// Returns a file whose first object has another version.
    fn file(&self, number: u32, version: &str) -> String {
        let others = (number..self.options.objects).step_by(self.options.files as usize).skip(1);
        self.object(number, version) + &others.map(|number| self.object(number, "first")).collect::<String>()
    }

    /// Returns a ConfigMap.
    fn object(&self, number: u32, version: &str) -> String {
        let mut text = format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: load-{number}, labels: {{app: load}}}}\n\
             data:\n  version: \"{version}\"\n"
        );
        for value in 0..(self.options.object_bytes as usize).saturating_sub(text.len()).div_ceil(VALUE + 15) {
            // It differs from those of other objects.
            let value_text = format!("{number}-{value}-");
            text += &format!("  value-{value}: \"{value_text:x<VALUE$}\"\n");
        }
        text
    }

    /// Waits until agentk has reported that a commit with this many objects is applied.
    async fn wait_for_objects(&self, objects: u64) -> anyhow::Result<Value> {
        let began = Instant::now();
        let label = "app.kubernetes.io/managed-by=agentk";
        let path = "jsonpath={.items[0].data.status}";
        let get = ["get", "configmap", "--namespace", NAMESPACES[0], "--selector", label, "--output", path];
        loop {
            let output = self.kubectl(&get).await.map(|output| output.stdout).unwrap_or_default();
            let status: Value = serde_json::from_slice(&output).unwrap_or_default();
            if status["state"] == "synced" && status["objects"]["total"] == objects {
                return Ok(status);
            }
            ensure!(began.elapsed() < LIMIT, "agentk did not apply {objects} objects in time: {status}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_for_value(&self, expected: &str) -> anyhow::Result<()> {
        let began = Instant::now();
        let path = "jsonpath={.data.version}";
        let get = ["get", "configmap", "load-0", "--namespace", NAMESPACES[0], "--output", path];
        while self.kubectl(&get).await?.stdout != expected.as_bytes() {
            ensure!(began.elapsed() < LIMIT, "the object did not become {expected:?} in time");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn commit(&self) -> anyhow::Result<()> {
        self.git(&["add", "--all"]).await?;
        let author = ["-c", "user.name=loadtest", "-c", "user.email=loadtest@example.com"];
        self.git(&[&author[..], &["commit", "--quiet", "--message", "Change the manifests"]].concat()).await
    }

    async fn git(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new("git");
        run(command.arg("-C").arg(&self.repository).args(arguments)).await.map(drop)
    }

    async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new("kubectl");
        run(command.arg("--kubeconfig").arg(&self.options.kubeconfig).args(arguments)).await
    }
}

impl RequestCounts {
    /// Reads the metrics of agentk.
    fn read(metrics: &str) -> Self {
        let (mut counts, mut renewals) = (Self::default(), 0);
        for line in metrics.lines() {
            let Some((labels, value)) =
                line.strip_prefix("agentk_gitops_requests_total{").and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            let value: u64 = value.parse().unwrap_or_default();
            let has = |label: &str| labels.contains(label);
            counts.all += value;
            if has(r#"dry_run="false""#) && ["create", "patch", "delete"].iter().any(|verb| has(verb)) {
                counts.writes += value;
            }
            if has(r#"verb="update""#) {
                renewals += value;
            }
        }
        // Only the Lease is updated, and it is read before each time.
        counts.all = counts.all.saturating_sub(2 * renewals);
        counts
    }
}

impl std::ops::Sub for RequestCounts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { all: self.all.saturating_sub(before.all), writes: self.writes.saturating_sub(before.writes) }
    }
}

/// Waits until agentk has ended more than `syncs` syncs. Returns their number and the requests so far.
async fn next_sync(observability: SocketAddr, syncs: u64) -> anyhow::Result<(u64, RequestCounts)> {
    let began = Instant::now();
    loop {
        let metrics = stack::get(observability, "/metrics").await?;
        let ended = stack::sum(&metrics, "agentk_gitops_syncs_total");
        if ended > syncs {
            return Ok((ended, RequestCounts::read(&metrics)));
        }
        ensure!(began.elapsed() < LIMIT, "agentk did not end a sync in time");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn run(command: &mut Command) -> anyhow::Result<Output> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let output =
        command.kill_on_drop(true).output().await.with_context(|| format!("cannot run {program}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", error.trim());
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_in_one_file() {
        let options = Gitops {
            kubeconfig: PathBuf::new(),
            objects: 10,
            object_bytes: 500,
            files: 3,
            rest: Duration::ZERO,
            logs: None,
            json: None,
        };
        let directory = tempfile::tempdir().unwrap();
        let workplace = Workplace { options: &options, repository: directory.path().to_owned() };
        let bytes = workplace.write_manifests(directory.path(), 10, 3).unwrap();
        assert!((4000..6000).contains(&bytes), "{bytes}");
        let read = |file: u32| fs::read_to_string(directory.path().join(format!("{file}.yaml"))).unwrap();
        let texts: Vec<String> = (0..3).map(read).collect();
        for number in 0..10 {
            let name = format!("name: load-{number},");
            assert_eq!(texts.iter().filter(|text| text.contains(&name)).count(), 1, "{name}");
        }
        assert_eq!(workplace.file(0, "first"), texts[0]);
        assert_ne!(workplace.file(0, "changed"), texts[0]);
    }
    #[test]
    fn requests_are_those_of_syncs() {
        let before = "agentk_gitops_requests_total{verb=\"get\",dry_run=\"false\"} 2\n\
                      agentk_gitops_requests_total{verb=\"update\",dry_run=\"false\"} 1\n";
        let after = "# TYPE agentk_gitops_requests counter\n\
                     agentk_gitops_requests_total{verb=\"update\",dry_run=\"false\"} 3\n\
                     agentk_gitops_requests_total{verb=\"get\",dry_run=\"false\"} 5\n\
                     agentk_gitops_requests_total{verb=\"list\",dry_run=\"false\"} 4\n\
                     agentk_gitops_requests_total{verb=\"patch\",dry_run=\"true\"} 7\n\
                     agentk_gitops_requests_total{verb=\"patch\",dry_run=\"false\"} 2\n\
                     agentk_gitops_reverts_total{project=\"a\"} 9\n";
        let counts = RequestCounts::read(after) - RequestCounts::read(before);
        assert_eq!(counts, RequestCounts { all: 14, writes: 2 });
    }
}
