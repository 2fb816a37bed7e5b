//! What a process has used, from `/proc`.

use std::{fs, time::Duration};

use anyhow::Context as _;

/// CPU time of a process so far.
///
/// Of its threads that run now, in nanoseconds; `/proc/PID/stat` counts those that ended, too, but only in hundredths of
/// a second.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))?;
    let mut sum = 0;
    for thread in threads.flatten() {
        // A thread that ended meanwhile has no file.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().next().and_then(|used| used.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(Duration::from_nanos(sum))
}

/// Memory of a process that is resident now, in KiB.
pub fn resident(pid: u32) -> anyhow::Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse().ok());
    number.with_context(|| format!("process {pid} has no memory any more"))
}

/// How busy the machine was in the last minute.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() > Duration::ZERO);
        assert!(resident(pid).unwrap() > 100);
        assert!(cpu(0).is_err());
    }
}
