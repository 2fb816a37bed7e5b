//! CPU time, memory and file descriptors of a process, from `/proc`.

use std::{fs, time::Duration};

use anyhow::Context as _;

/// Returns the CPU time of the running threads of a process.
///
/// `/proc/PID/stat` also counts threads that have ended, but only in hundredths of a second.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))?;
    let mut sum = 0;
    for thread in threads.flatten() {
        // The file is missing if the thread has ended meanwhile.
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().next().and_then(|used| used.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(Duration::from_nanos(sum))
}

/// Returns the resident memory of a process in KiB.
pub fn resident(pid: u32) -> anyhow::Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()).and_then(|text| text.parse().ok());
    number.with_context(|| format!("process {pid} has no memory any more"))
}

/// Returns the number of open file descriptors of a process.
pub fn descriptors(pid: u32) -> anyhow::Result<u64> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("process {pid}"))?;
    Ok(open.count() as u64)
}

/// Returns the load average of the last minute, or NaN if it is unknown.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_is_positive() {
        let pid = std::process::id();
        assert!(cpu(pid).unwrap() > Duration::ZERO);
        assert!(resident(pid).unwrap() > 100);
        assert!(descriptors(pid).unwrap() > 2);
        assert!(cpu(0).is_err());
    }
}
