//! The questions, one function each: parameters in, an answer of [`crate::answers`] out.

mod apps;
mod events;
mod filter;
mod frame;
mod functions;
mod handover;
mod info;
mod packet;
mod packets;
mod phases;
mod profile;
mod time;
mod trust;
mod writes;

use crate::open::{Log, Opened};
use crate::question::Question;
use crate::service::Service;
use kpat_query::PacketFilter;
use kpat_query::catalog::{Catalog, Column};
use kpat_query::filter::{Filter, FilterError};
use serde::Serialize;
use std::str::FromStr;
use std::sync::Arc;

/// Why there is no answer.
#[derive(Debug, PartialEq)]
pub enum Failure {
    /// Words, and the place in the filter in UTF-16 units if it is the filter.
    Words(String, Option<(usize, usize)>),
    /// Nobody waits for it any more.
    Left,
}

impl Failure {
    pub fn words(words: impl Into<String>) -> Failure {
        Failure::Words(words.into(), None)
    }
}

impl From<kpat_query::Error> for Failure {
    fn from(e: kpat_query::Error) -> Failure {
        match e {
            kpat_query::Error::Abandoned => Failure::Left,
            e => Failure::words(e.to_string()),
        }
    }
}

pub type Answer<T> = Result<T, Failure>;

/// Called with what is done, and how much of how much; false: the client has gone.
pub type Progress<'a> = &'a mut Step<'a>;
pub type Step<'a> = dyn FnMut(&str, u64, u64) -> bool + 'a;

/// A question to one log.
pub struct Ask<'a> {
    pub service: &'a Service,
    pub opened: &'a Opened,
    pub log: &'a Arc<Log>,
    pub request: &'a Question,
    /// Takes an answer over a part of the packets, as JSON, while that over all of them is made.
    pub parts: &'a dyn Fn(&[u8]),
}

/// Rows in one answer at most.
const MOST_ROWS: usize = 5_000;

impl Ask<'_> {
    /// A parameter that is a number.
    fn number<T: FromStr>(&self, name: &str) -> Answer<Option<T>> {
        match self.request.get(name).filter(|t| !t.is_empty()) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(Failure::words(format!("{name}={text} is not a number that fits"))),
            },
        }
    }

    fn needed<T: FromStr>(&self, name: &str) -> Answer<T> {
        self.number(name)?.ok_or_else(|| Failure::words(format!("the question needs {name}=")))
    }

    /// `frame` as CAPTURE.NUMBER.
    fn frame(&self) -> Answer<Option<(i32, i64)>> {
        let Some(text) = self.request.get("frame").filter(|t| !t.is_empty()) else { return Ok(None) };
        let parts = text.split_once('.').and_then(|(c, n)| Some((c.parse().ok()?, n.parse().ok()?)));
        parts.map(Some).ok_or_else(|| Failure::words(format!("frame={text} is not CAPTURE.NUMBER")))
    }

    /// `from` and `count`.
    fn page(&self) -> Answer<(usize, usize)> {
        Ok((self.number("from")?.unwrap_or(0), self.number("count")?.unwrap_or(100).min(MOST_ROWS)))
    }

    /// `from` and `to`, by the boot clock; without them all of the log.
    fn stretch(&self) -> Answer<(i64, i64)> {
        let start = self.log.start_ns();
        let last = self.log.info.manifest.last_ns.max(start);
        let bound = |name, otherwise: i64| -> Answer<i64> {
            Ok(self.number::<i64>(name)?.map_or(otherwise, |t| start.saturating_add(t)))
        };
        let (from, to) = (bound("from", start)?, bound("to", last)?);
        if from > to {
            return Err(Failure::words("the stretch of time ends before it begins"));
        }
        Ok((from, to))
    }

    /// Shows what there is of an answer so far.
    fn so_far<T: Serialize>(&self, part: &T) {
        if let Ok(part) = serde_json::to_vec(part) {
            (self.parts)(&part);
        }
    }

    fn flag(&self, name: &str) -> bool {
        self.request.get(name).is_some_and(|v| v == "1" || v == "true")
    }

    fn text_of_filter(&self) -> &str {
        self.request.get("where").unwrap_or_default().trim()
    }

    fn filter(&self) -> Answer<Option<Filter>> {
        let text = self.request.get("where").unwrap_or_default();
        Filter::parse(text).map_err(|e| mistake(text, &e))
    }

    fn catalog(&self, progress: Progress<'_>) -> Answer<Arc<Catalog>> {
        self.service.load(self.log);
        let wait = self.log.catalog(&mut |done, parts| progress("reading the packets", done, parts));
        wait.map_err(|e| e.map_or(Failure::Left, Failure::words))
    }

    /// Places in the list of the rows that fit, in the order asked for.
    fn places(
        &self,
        catalog: &Catalog,
        order: (Option<Column>, bool),
        progress: Progress<'_>,
    ) -> Answer<Arc<Vec<u32>>> {
        let text = self.text_of_filter().to_owned();
        let key = (text.clone(), order.0, order.1);
        if let Some(found) = self.log.orders.get(&key) {
            return Ok(found);
        }
        // A page asks for several stretches of a list, and for its density, at once.
        let still = |words| move |p: &mut Step<'_>| if p(words, 0, 1) { Ok(()) } else { Err(Failure::Left) };
        let fitting = |p: &mut Step<'_>| self.fitting(catalog, p);
        let orders = &self.log.orders;
        let in_time = orders.get_or_once((text, None, false), progress, still("filtering"), fitting)?;
        if order == (None, false) {
            return Ok(in_time);
        }
        orders.get_or_once(key, progress, still("sorting"), |_| {
            let mut places = in_time.as_ref().clone();
            catalog.sort(&mut places, order.0.unwrap_or(Column::Time), order.1);
            Ok(places)
        })
    }

    fn fitting(&self, catalog: &Catalog, progress: Progress<'_>) -> Answer<Vec<u32>> {
        let condition = match self.filter()? {
            None => None,
            Some(f) => Some(f.prepare(&self.log.store, &mut |done, parts| {
                progress("looking for the functions", done, parts)
            })?),
        };
        Ok(catalog.fitting(condition.as_ref(), &mut |done, parts| progress("filtering", done, parts))?)
    }

    /// Packets that fit, sorted; `None`: there is no filter.
    fn ids(&self, progress: Progress<'_>) -> Answer<Option<Arc<[i64]>>> {
        if self.filter()?.is_none() {
            return Ok(None);
        }
        let key = self.text_of_filter().to_owned();
        let ids = self.log.ids.get_or(key, || {
            let catalog = self.catalog(progress)?;
            let places = self.places(&catalog, (None, false), progress)?;
            let all = places.iter().map(|&i| &catalog.entries[i as usize]);
            let mut ids: Vec<i64> = all.filter(|e| e.is_packet()).map(|e| e.id).collect();
            ids.sort_unstable();
            Ok::<Arc<[i64]>, Failure>(Arc::from(ids))
        })?;
        Ok(Some(Arc::clone(&ids)))
    }

    fn packet_filter(&self, progress: Progress<'_>) -> Answer<PacketFilter> {
        Ok(PacketFilter { ids: self.ids(progress)?, ..PacketFilter::default() })
    }
}

/// A mistake in a filter, with its place as a text field counts.
fn mistake(text: &str, e: &FilterError) -> Failure {
    let place = |byte: usize| text.get(..byte).map_or(0, |before| before.encode_utf16().count());
    Failure::Words(e.words.clone(), Some((place(e.at.start), place(e.at.end))))
}

/// Answers a question, as JSON; `None`: there is none of that name.
pub fn answer(ask: &Ask<'_>, progress: Progress<'_>) -> Option<Answer<Vec<u8>>> {
    Some(match ask.request.path.as_str() {
        "/api/info" => json(info::info(ask)),
        "/api/packets" => json(packets::packets(ask, progress)),
        "/api/packets/at" => json(packets::at(ask, progress)),
        "/api/overview" => json(packets::overview(ask, progress)),
        "/api/packet" => json(packet::packet(ask)),
        "/api/frame" => json(frame::frame(ask)),
        "/api/functions" => json(functions::functions(ask, progress)),
        "/api/function" => json(functions::function(ask, progress)),
        "/api/flame" => json(functions::flame(ask, progress)),
        "/api/compare" => json(functions::compare(ask, progress)),
        "/api/time" => json(time::time(ask, progress)),
        "/api/latency" => json(time::latency(ask, progress)),
        "/api/phases" => json(phases::phases(ask, progress)),
        "/api/phases/packets" => json(phases::packets(ask, progress)),
        "/api/handovers" => json(handover::handovers(ask, progress)),
        "/api/handover" => json(handover::handover(ask, progress)),
        "/api/profile" => json(profile::profile(ask, progress)),
        "/api/profile/flame" => json(profile::flame(ask, progress)),
        "/api/trust" => json(trust::trust(ask)),
        "/api/events" => json(events::events(ask, progress)),
        "/api/events/sums" => json(events::sums(ask, progress)),
        "/api/apps" => json(apps::apps(ask, progress)),
        "/api/app" => json(apps::app(ask, progress)),
        "/api/app/series" => json(apps::series(ask, progress)),
        "/api/app/why" => json(writes::why(ask, progress)),
        "/api/app/writes" => json(writes::slow(ask)),
        "/api/app/write" => json(writes::one(ask)),
        "/api/complete" => json(filter::complete(ask)),
        "/api/check" => json(filter::check(ask)),
        _ => return None,
    })
}

fn json<T: Serialize>(answer: Answer<T>) -> Answer<Vec<u8>> {
    serde_json::to_vec(&answer?).map_err(|e| Failure::words(e.to_string()))
}
