//! The metrics `process_*` of this process, with the names that Prometheus' client libraries use.
//!
//! They come from `/proc` at each scrape. A unit of systemd with `ProcSubset=pid` hides `/proc/stat` and `/proc/uptime`, so that
//! the time of the start is computed from the clock of the system.

use std::{
    fmt, fs, io,
    time::{Duration, SystemTime},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    time::{ClockId, clock_gettime},
};

use crate::descriptors;

/// Registers `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`,
/// `process_max_fds`, `process_start_time_seconds` and `process_threads`.
pub fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(ProcessCollector { started: start_time().ok() }));
}

#[derive(Debug)]
struct ProcessCollector {
    /// The time of the start, as Unix time.
    started: Option<Duration>,
}

/// The fields of `/proc/self/stat` that are metrics (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessStat {
    /// Time in user and kernel mode, in clock ticks.
    cpu_ticks: u64,
    threads: u64,
    /// Time of the start since the system was booted, in clock ticks.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    fn read() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/stat")?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the name of the program, which may contain spaces and parentheses.
        let (_, fields) = text.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // The manual page counts from 1, and the first of these fields is the third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        if let Ok(stat) = ProcessStat::read() {
            let cpu = ConstCounter::new(ticks(stat.cpu_ticks).as_secs_f64());
            let (help, unit) = ("CPU time in user and kernel mode", Unit::Seconds);
            let cpu_encoder =
                encoder.encode_descriptor("process_cpu", help, Some(&unit), MetricType::Counter)?;
            cpu.encode(cpu_encoder)?;
            let resident = stat.resident_pages * page_size() as u64;
            encode_gauge(encoder, "process_resident_memory", "Resident memory", Some(Unit::Bytes), resident)?;
            let virtual_bytes = stat.virtual_bytes;
            encode_gauge(
                encoder,
                "process_virtual_memory",
                "Virtual memory",
                Some(Unit::Bytes),
                virtual_bytes,
            )?;
            encode_gauge(encoder, "process_threads", "Threads", None, stat.threads)?;
        }
        if let Ok(open) = open_files() {
            encode_gauge(encoder, "process_open_fds", "Open file descriptors", None, open)?;
        }
        let limit = descriptors::limit();
        encode_gauge(encoder, "process_max_fds", "Limit of open file descriptors", None, limit)?;
        if let Some(started) = self.started {
            let (help, seconds) = ("Start of the process, as Unix time", started.as_secs_f64());
            encode_gauge(encoder, "process_start_time", help, Some(Unit::Seconds), seconds)?;
        }
        Ok(())
    }
}

fn encode_gauge<N: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<Unit>,
    value: N,
) -> fmt::Result {
    let encoder = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
    ConstGauge::new(value).encode(encoder)
}

/// Returns the number of open files, which the size of the directory is since Linux 6.2.
fn open_files() -> io::Result<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory)?.len() {
        0 => Ok(fs::read_dir(directory)?.count() as u64),
        count => Ok(count),
    }
}

/// Returns the time of the start of this process, as Unix time.
fn start_time() -> io::Result<Duration> {
    let since_boot = clock_gettime(ClockId::Boottime);
    let since_boot =
        Duration::new(since_boot.tv_sec.unsigned_abs(), since_boot.tv_nsec.unsigned_abs() as u32);
    let age = since_boot.saturating_sub(ticks(ProcessStat::read()?.start_ticks));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_err(io::Error::other)?;
    Ok(now.saturating_sub(age))
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    const STAT: &str = "4711 (a) name (x) S 1 4711 4711 0 -1 4194560 5000 0 3 0 120 34 0 0 20 0 9 0 8812345 734003200 25600 \
                        18446744073709551615 1 1 0 0 0 0 0 4096 17642 0 0 0 17 1 0 0 0 0 0";

    #[test]
    fn fields_are_found_after_a_name_with_spaces_and_parentheses() {
        let stat = ProcessStat {
            cpu_ticks: 154,
            threads: 9,
            start_ticks: 8_812_345,
            virtual_bytes: 734_003_200,
            resident_pages: 25_600,
        };
        assert_eq!(ProcessStat::parse(STAT), Some(stat));
        for wrong in ["", "1 (kas) S", "1 (kas) S 1 1 1 0 -1 0 0 0 0 0 x 34 0 0 20 0 9 0 8 7 6"] {
            assert_eq!(ProcessStat::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn metrics_are_those_of_this_process() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert!((0.0..3600.0).contains(&value("process_cpu_seconds_total")), "{text}");
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 1e6 && resident < value("process_virtual_memory_bytes"), "{text}");
        let open = value("process_open_fds");
        assert!(open >= 3.0 && open <= value("process_max_fds"), "{text}");
        assert!(value("process_threads") >= 1.0, "{text}");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-1.0..3600.0).contains(&age), "{text}");
    }
}
