//! Results in their order, from what streams have buffered.

use super::{Entry, Order, Reached, Scan};

impl<E> Scan<E> {
    /// The next result, if it is there. If it is not, ask [`Scan::questions`].
    pub fn deliver(&mut self) -> Option<Entry<E>> {
        let at = self.next_stream()?;
        let entry = self.take_from(at)?;
        if let Some(limit) = &mut self.limit {
            *limit -= 1;
        }
        Some(entry)
    }

    /// What [`Scan::deliver`] would deliver. It is not delivered by that ⚑: a token does not
    /// stand behind it.
    pub fn peek(&mut self) -> Option<&Entry<E>> {
        let at = self.next_stream()?;
        self.streams[at].buffer.front()
    }

    /// Puts several results in the place of the one that [`Scan::peek`] shows, which stood for
    /// them: for scans without an order, a window, and places of single results.
    pub fn split_next(&mut self, parts: impl FnOnce(E) -> Vec<E>) {
        debug_assert!(self.order == Order::Unsorted && self.limit.is_none());
        let Some(at) = self.next_stream() else {
            return;
        };
        let buffer = &mut self.streams[at].buffer;
        let Some(entry) = buffer.pop_front() else {
            return;
        };
        for value in parts(entry.value).into_iter().rev() {
            buffer.push_front(Entry {
                sort: Vec::new(),
                place: None,
                value,
            });
        }
    }

    /// The stream of the next result, behind those that are left out.
    fn next_stream(&mut self) -> Option<usize> {
        loop {
            if self.limit == Some(0) {
                return None;
            }
            let at = match self.order {
                Order::Unsorted => self.first_buffered()?,
                Order::Sorted => self.least_buffered()?,
                Order::Whole if self.is_answered() => self.first_buffered()?,
                Order::Whole => return None,
            };
            if self.skip == 0 {
                return Some(at);
            }
            self.skip -= 1;
            self.take_from(at)?;
        }
    }

    fn take_from(&mut self, at: usize) -> Option<Entry<E>> {
        let stream = &mut self.streams[at];
        let entry = stream.buffer.pop_front()?;
        if let Some(place) = &entry.place {
            stream.delivered = Reached::Behind(place.clone());
        }
        if stream.buffer.is_empty() {
            stream.delivered = stream.reached.clone();
        }
        if self.order == Order::Sorted && self.floor.as_ref() != Some(&entry.sort) {
            self.floor = Some(entry.sort.clone());
        }
        Some(entry)
    }

    /// Whether every stream has given all that it has.
    fn is_answered(&self) -> bool {
        let mut streams = self.streams.iter();
        streams.all(|stream| stream.reached == Reached::End)
    }

    /// In the order of streams: what one of them offers is delivered before the next begins.
    fn first_buffered(&self) -> Option<usize> {
        let at = self.streams.iter().position(|stream| !stream.has_ended())?;
        (!self.streams[at].buffer.is_empty()).then_some(at)
    }

    /// The stream whose next entry is the least of all, if all that have not ended
    /// have one.
    fn least_buffered(&self) -> Option<usize> {
        let mut least: Option<(usize, &[u8])> = None;
        for (at, stream) in self.streams.iter().enumerate() {
            match stream.buffer.front() {
                Some(entry) => {
                    if least.is_none_or(|(_, other)| entry.sort.as_slice() < other) {
                        least = Some((at, &entry.sort));
                    }
                }
                None if stream.reached == Reached::End => {}
                None => return None,
            }
        }
        least.map(|(at, _)| at)
    }
}
