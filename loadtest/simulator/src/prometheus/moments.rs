//! Times, durations and ranges in query parameters.

use super::super::clock;
use super::super::request::Query;
use super::QueryError;

/// Parses a time in Unix seconds or RFC 3339.
pub(super) fn moment(query: &Query, name: &str) -> Result<Option<f64>, QueryError> {
    let Some(text) = query.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
    let time = text.parse().ok().or_else(|| clock::parse(text)).filter(|time| time.abs() <= FARTHEST);
    let time = time.ok_or_else(|| {
        QueryError::parameter(name, &format!("cannot parse \"{text}\" to a valid timestamp"))
    })?;
    Ok(Some(time))
}

/// Parses a duration in seconds or with units, such as `1h30m`.
pub(super) fn duration(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|character: char| character.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let (_, length) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * length;
        rest = after;
    }
    Some(seconds).filter(|_| !text.is_empty())
}

/// The range of a range query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: f64,
    step: f64,
    steps: u32,
}

impl Range {
    pub(super) fn from_query(query: &Query) -> Result<Self, QueryError> {
        let required = |name: &str| {
            let missing = || QueryError::parameter(name, "cannot parse \"\" to a valid timestamp");
            moment(query, name)?.ok_or_else(missing)
        };
        let (start, end) = (required("start")?, required("end")?);
        if end < start {
            return Err(QueryError::parameter("end", "end timestamp must not be before start time"));
        }
        let step = query.get("step").and_then(duration);
        let step =
            step.ok_or_else(|| QueryError::parameter("step", "cannot parse it to a valid duration"))?;
        if step <= 0.0 {
            let why =
                "zero or negative query resolution step widths are not accepted. Try a positive integer";
            return Err(QueryError::parameter("step", why));
        }
        let steps = ((end - start) / step).floor();
        if steps > MAX_POINTS {
            let why = "exceeded maximum resolution of 11,000 points per timeseries. \
                Try decreasing the query resolution (?step=XX)";
            return Err(QueryError::bad_data(why));
        }
        Ok(Self { start, step, steps: steps as u32 })
    }

    pub(super) fn times(self) -> impl Iterator<Item = f64> {
        (0..=self.steps).map(move |index| self.start + f64::from(index) * self.step)
    }
}

/// The maximum number of points per series, as in Prometheus.
const MAX_POINTS: f64 = 11_000.0;

/// The maximum of a time in seconds: a float is exact to the millisecond up to it.
const FARTHEST: f64 = 1e12;

const UNITS: [(&str, f64); 7] = [
    ("ms", 0.001),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
    ("d", 86_400.0),
    ("w", 604_800.0),
    ("y", 31_536_000.0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_or_units() {
        for (text, seconds) in
            [("15", 15.0), ("0.5", 0.5), ("1h30m", 5400.0), ("100ms", 0.1), ("1d", 86_400.0)]
        {
            assert_eq!(duration(text), Some(seconds), "{text}");
        }
        for wrong in ["", "x", "inf", "1x", "m", "1h5"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ranges_have_bounds() {
        let points = |query: &str| Range::from_query(&Query::parse(query)).map(|range| range.times().count());
        assert_eq!(points("start=0&end=60&step=15s").expect("a range"), 5);
        for wrong in [
            "start=0&end=60",
            "start=60&end=0&step=1",
            "start=0&end=60&step=0",
            "start=0&end=1e9&step=1",
            "start=nan&end=inf&step=1",
            "start=0&end=1&step=1e-300",
        ] {
            assert!(points(wrong).is_err(), "{wrong}");
        }
    }
}
