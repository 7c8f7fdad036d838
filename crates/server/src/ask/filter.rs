//! Help while a filter is written.

use super::{Answer, Ask};
use crate::answers::log::{Checked, Completion, CompletionItem};
use kpat_query::catalog::Names;
use kpat_query::filter;

/// Byte of a place that counts UTF-16 units.
fn byte_at(text: &str, units: usize) -> usize {
    let mut left = units;
    for (byte, c) in text.char_indices() {
        if left < c.len_utf16() {
            return byte;
        }
        left -= c.len_utf16();
    }
    text.len()
}

fn units_at(text: &str, byte: usize) -> usize {
    text.get(..byte).map_or(0, |before| before.encode_utf16().count())
}

pub fn complete(ask: &Ask<'_>) -> Answer<Completion> {
    let text = ask.request.get("text").unwrap_or_default();
    let at = ask.number::<usize>("at")?.map_or(text.len(), |units| byte_at(text, units));
    ask.service.load(ask.log);
    // Names of threads and interfaces come with the packets.
    let catalog = ask.log.loaded();
    let none = Names::default();
    let names = catalog.as_ref().map_or(&none, |c| &c.names);
    let found = filter::complete(&ask.log.store, names, text, at);
    Ok(Completion {
        from: units_at(text, found.from),
        to: units_at(text, found.to),
        items: found.items.into_iter().map(|i| CompletionItem { text: i.text, words: i.words }).collect(),
    })
}

pub fn check(ask: &Ask<'_>) -> Answer<Checked> {
    let filter = ask.filter()?;
    let quick = filter.as_ref().is_none_or(|f| !f.needs_calls(&ask.log.store));
    let rows = match ask.log.loaded().filter(|_| quick) {
        None => None,
        Some(catalog) => Some(ask.places(&catalog, (None, false), &mut |_, _, _| true)?.len() as u64),
    };
    Ok(Checked { rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_as_a_text_field_counts_them() {
        let text = "'größe 🦀' x";
        assert_eq!(byte_at(text, 0), 0);
        assert_eq!(byte_at(text, units_at(text, text.len())), text.len());
        let x = text.find('x').unwrap();
        assert_eq!((units_at(text, x), byte_at(text, 11)), (11, x));
    }
}
