//! The most memory that the control group of this process may use, such as that of a container.

use std::{fs, path::Path};

/// Returns the limit in bytes, or `None` if there is none. It reads files of the kernel.
pub fn memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let read = |file: &str| fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok();
    smallest_limit(&groups, read)
}

/// Returns the smallest limit of a group and its parents. `groups`: the text of `/proc/self/cgroup`. `read`: returns the text of a file
/// below the mounted control groups.
fn smallest_limit(groups: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let (controllers, path) =
            line.split_once(':').and_then(|(_, rest)| rest.split_once(':')).unwrap_or_default();
        let (root, file) = match controllers {
            "" => ("", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        // Within a container, the path is that of the machine, and the mount has the group of the container as its root.
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors();
        let files = ancestors.map(|group| Path::new(root).join(group).join(file));
        files.filter_map(|file| read(file.to_str()?)?.trim().parse().ok()).collect()
    });
    // Version 1 writes a number near 2^63 if there is no limit.
    limits.filter(|limit| *limit < 1 << 60).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(groups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let find =
            |file: &str| files.iter().find(|(path, _)| *path == file).map(|(_, text)| (*text).to_owned());
        smallest_limit(groups, find)
    }

    #[test]
    fn smallest_limit_of_the_group_and_its_parents_is_found() {
        let files = [("kas.slice/kas.service/memory.max", "max\n"), ("kas.slice/memory.max", "1048576\n")];
        assert_eq!(limit("0::/kas.slice/kas.service\n", &files), Some(1 << 20));
        assert_eq!(limit("0::/\n", &[("memory.max", "524288\n")]), Some(1 << 19), "a container");
        assert_eq!(limit("0::/../../x\n", &[("memory.max", "524288\n")]), Some(1 << 19));
        assert_eq!(limit("0::/\n", &[("memory.max", "max\n")]), None);
        assert_eq!(limit("0::/\n", &[]), None, "the machine itself has no such file");
    }

    #[test]
    fn limit_of_version_1_is_found() {
        let groups = "12:cpu,cpuacct:/a\n9:memory:/a\n";
        assert_eq!(limit(groups, &[("memory/a/memory.limit_in_bytes", "4096\n")]), Some(4096));
        assert_eq!(limit(groups, &[("memory/memory.limit_in_bytes", "9223372036854771712\n")]), None);
    }
}
