//! Quantities of Kubernetes, such as `250m` of a CPU and `1Gi` of memory.

/// The suffixes with their factors, as a numerator and a denominator.
const SUFFIXES: [(&str, u128, u128); 15] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
];
/// The most digits of a number. Kubernetes has no more than 18.
const MAX_DIGITS: usize = 18;

/// Returns a quantity times `unit`, rounded up, or `None` if the text is no quantity of a cluster or is too large.
pub(crate) fn parse(text: &str, unit: u64) -> Option<u64> {
    let (number, numerator, denominator) = split(text)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: u128 = digits.parse().ok()?;
    let value = value.checked_mul(numerator)?.checked_mul(unit.into())?;
    let scale = 10_u128.checked_pow(fraction.len().try_into().ok()?)?.checked_mul(denominator)?;
    value.div_ceil(scale).try_into().ok()
}

/// Returns the number of a quantity and the factor of its suffix. An exponent is one, too.
fn split(text: &str) -> Option<(&str, u128, u128)> {
    // `E` and `Ei` are suffixes, too.
    let exponent = text
        .split_once(['e', 'E'])
        .and_then(|(number, exponent)| Some((number, exponent.parse::<i8>().ok()?)));
    if let Some((number, exponent)) = exponent {
        let power =
            10_u128.checked_pow(exponent.unsigned_abs().into()).filter(|_| exponent.unsigned_abs() <= 18)?;
        return Some(if exponent < 0 { (number, 1, power) } else { (number, power, 1) });
    }
    let suffix = SUFFIXES.into_iter().find_map(|(suffix, numerator, denominator)| {
        Some((text.strip_suffix(suffix)?, numerator, denominator))
    });
    Some(suffix.unwrap_or((text, 1, 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, milli) in [
            ("0", 0),
            ("2", 2000),
            ("250m", 250),
            ("0.5", 500),
            (".5", 500),
            ("1500u", 2),
            ("1n", 1),
            ("1k", 1_000_000),
            ("1Ki", 1_024_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("12e-1", 1200),
        ] {
            assert_eq!(parse(text, 1000), Some(milli), "{text}");
        }
        assert_eq!(parse("16Gi", 1), Some(16 << 30));
        assert_eq!(parse("1E", 1), Some(1_000_000_000_000_000_000));
        assert_eq!(parse("1Ei", 1), Some(1 << 60));
        assert_eq!(parse("0.5Ei", 1), Some(1 << 59));
        assert_eq!(parse("128974848", 1), Some(128_974_848));
    }

    #[test]
    fn hostile_text_is_no_quantity() {
        for text in
            ["", "m", "-1", "+1", "1.2.3", "Gi", "1 Gi", "1e99", "1e", "é", "99999999999999999999", "1000Ei"]
        {
            assert_eq!(parse(text, 1000), None, "{text:?}");
        }
    }
}
