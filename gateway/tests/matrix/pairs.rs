//! Cases in which each pair of values meets: a covering array of strength two, by the greedy method of AETG (Cohen and others, 1997).

use std::cmp::Reverse;

/// A dimension, and the index of one of its values.
pub(crate) type Choice = (usize, usize);

/// Returns rows of one index for each dimension. Each allowed pair of values that a row can have is in one, and no row has a pair that is
/// not allowed.
///
/// `counts` has the number of values of each dimension. The rows are the same in each run.
pub(crate) fn covering_rows<const N: usize>(
    counts: [usize; N],
    is_allowed: impl Fn(Choice, Choice) -> bool,
) -> Vec<[usize; N]> {
    let mut missing = all_pairs(counts);
    missing.retain(|(a, b)| is_allowed(*a, *b));
    let mut rows = Vec::new();
    while let Some((first, second)) = missing.first().copied() {
        let mut row = [None; N];
        row[first.0] = Some(first.1);
        row[second.0] = Some(second.1);
        let search = Search { counts, is_allowed: &is_allowed, missing: &missing, turn: rows.len() };
        let Some(row) = search.complete(row) else {
            missing.remove(0);
            continue;
        };
        missing.retain(|(a, b)| row[a.0] != a.1 || row[b.0] != b.1);
        rows.push(row);
    }
    rows
}

/// The search for a row.
struct Search<'a, F, const N: usize> {
    counts: [usize; N],
    is_allowed: &'a F,
    missing: &'a [(Choice, Choice)],
    /// Values take turns where several are equally good.
    turn: usize,
}

impl<F: Fn(Choice, Choice) -> bool, const N: usize> Search<'_, F, N> {
    /// Chooses the value of the first dimension without one, and then the others. `None` if no values fit.
    fn complete(&self, row: [Option<usize>; N]) -> Option<[usize; N]> {
        let Some(dimension) = row.iter().position(Option::is_none) else {
            return Some(row.map(Option::unwrap_or_default));
        };
        let chosen = || row.iter().enumerate().filter_map(|(other, index)| index.map(|index| (other, index)));
        let turns = (0..self.counts[dimension]).map(|index| (index + self.turn) % self.counts[dimension]);
        let mut fitting: Vec<_> = turns
            .filter(|index| chosen().all(|other| (self.is_allowed)((dimension, *index), other)))
            .collect();
        fitting.sort_by_key(|index| {
            let is_missing = |other: &Choice| self.missing.contains(&ordered((dimension, *index), *other));
            Reverse(chosen().filter(is_missing).count())
        });
        fitting.into_iter().find_map(|index| {
            let mut next = row;
            next[dimension] = Some(index);
            self.complete(next)
        })
    }
}

fn all_pairs<const N: usize>(counts: [usize; N]) -> Vec<(Choice, Choice)> {
    let values = |dimension: usize| (0..counts[dimension]).map(move |index| (dimension, index));
    let dimensions = (0..N).flat_map(|first| (first + 1..N).map(move |second| (first, second)));
    dimensions
        .flat_map(|(first, second)| values(first).flat_map(move |a| values(second).map(move |b| (a, b))))
        .collect()
}

fn ordered(a: Choice, b: Choice) -> (Choice, Choice) {
    if a.0 < b.0 { (a, b) } else { (b, a) }
}

/// Checks the generator with small dimensions, a pair that is not allowed, and a value that no row can have.
pub(crate) fn check_generator() {
    let is_allowed = |a, b| {
        let (a, b) = ordered(a, b);
        (a, b) != ((0, 0), (1, 0)) && (a, b.0) != ((1, 3), 2)
    };
    let counts = [3, 4, 2, 2];
    let rows = covering_rows(counts, is_allowed);
    for (a, b) in all_pairs(counts) {
        let is_covered = rows.iter().any(|row| row[a.0] == a.1 && row[b.0] == b.1);
        let is_possible = is_allowed(a, b) && a != (1, 3) && b != (1, 3);
        assert_eq!(is_covered, is_possible, "{a:?} {b:?} in {rows:?}");
    }
    assert!(rows.len() < 20, "there are 48 combinations, and these are {}", rows.len());
}
