//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Returns the limit of open files of this process, or `u64::MAX` if there is none.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit of open files to the hard limit of this process, and returns it. If the system refuses that, the limit stays.
pub fn raise_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_limit_is_the_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(raise_limit(), hard);
        assert_eq!(limit(), hard);
    }
}
