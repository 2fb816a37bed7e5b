//! What time it is (RFC 9110 section 6.6.1).

use std::{
    cell::Cell,
    time::{Duration, UNIX_EPOCH},
};

/// `Sun, 06 Nov 1994 08:49:37 GMT`.
type Date = [u8; 29];

thread_local! {
    /// The second that was written last.
    static LAST: Cell<(u64, Date)> = const { Cell::new((u64::MAX, [b' '; 29])) };
}

/// The value of a `Date`. It is written once in a second, and not with every answer.
pub(super) fn now() -> Date {
    let second = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let (last, date) = LAST.get();
    if last == second {
        return date;
    }
    let date = write(second);
    LAST.set((second, date));
    date
}

fn write(second: u64) -> Date {
    let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
    text.as_bytes().try_into().expect("of fixed length")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_date_is_that_of_now() {
        assert_eq!(&write(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        let before = SystemTime::now();
        let date = httpdate::parse_http_date(std::str::from_utf8(&now()).unwrap()).unwrap();
        assert!(before.duration_since(date).unwrap_or_default() < Duration::from_secs(2));
        assert!(date <= SystemTime::now());
        assert_eq!(now().len(), 29);
    }
}
