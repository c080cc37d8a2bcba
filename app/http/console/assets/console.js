// The console works without this file. With it: keys, buttons that copy, and numbers that move.
const LIVE_MS = 2000
const POINTS = 60

// --- keys

const typing = (target) => target instanceof Element && target.closest("input, select, textarea")
let after_g = false

function rows() {
  return [...document.querySelectorAll("tr[data-row]")]
}

function step(by) {
  const all = rows()
  if (!all.length) return
  const at = all.findIndex((row) => row.classList.contains("here"))
  const next = Math.min(all.length - 1, Math.max(0, at + by))
  all.forEach((row) => row.classList.remove("here"))
  all[next].classList.add("here")
  all[next].scrollIntoView({ block: "nearest" })
  all[next].querySelector("a, summary")?.focus({ preventScroll: true })
}

function search_here() {
  const search = document.querySelector("[data-search]")
  search?.focus()
  search?.select()
  return search !== null
}

if (location.hash === "#search") search_here() // from a page without a search

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  if (typing(event.target)) {
    if (event.key === "Escape") event.target.blur()
    return
  }
  if (after_g) {
    after_g = false
    const link = document.querySelector(`nav a[data-go="${CSS.escape(event.key)}"]`)
    if (link) {
      event.preventDefault()
      location.assign(link.href)
    }
    return
  }
  if (event.key === "g") after_g = true
  else if (event.key === "j") step(1)
  else if (event.key === "k") step(-1)
  else if (event.key === "f") document.querySelector('a[data-key="f"]')?.click()
  else if (event.key === "?") document.querySelector("#keys").showModal()
  else if (event.key === "/") {
    event.preventDefault()
    if (!search_here()) location.assign("/console/topics#search")
  }
})

// On a phone the pages stand in a row that may be longer than the screen, and so do the tabs.
for (const link of document.querySelectorAll("nav a[aria-current]")) link.scrollIntoView({ block: "nearest", inline: "center" })

// --- buttons that copy

for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) break // a page without TLS that is not of this machine has none
  button.hidden = false
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy)
    button.textContent = "Copied"
    setTimeout(() => (button.textContent = "Copy"), 1500)
  })
}

// --- numbers that move

function rate(value, unit) {
  if (unit === "B/s") {
    for (const [size, name] of [[2 ** 30, "GiB/s"], [2 ** 20, "MiB/s"], [2 ** 10, "KiB/s"]])
      if (value >= size) return `${(value / size).toFixed(1)} ${name}`
    return `${Math.round(value)} B/s`
  }
  const after = unit.startsWith("/") ? unit : ` ${unit}`
  for (const [size, name] of [[1e6, "M"], [1e3, "k"]]) if (value >= size) return `${(value / size).toFixed(1)} ${name}${after}`
  return `${Math.round(value)}${after}`
}

const seen = new Map()
let last = null

function draw(chart, name, value) {
  const points = seen.get(name) ?? []
  seen.set(name, points)
  points.push(value)
  if (points.length > POINTS) points.shift()
  const most = Math.max(1, ...points)
  const place = (value, index) => `${120 - (points.length - 1 - index) * (120 / (POINTS - 1))},${23 - 21 * (value / most)}`
  chart.firstElementChild.setAttribute("points", points.map(place).join(" "))
}

function span(seconds) {
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.round(seconds / size)} ${name}`
  return `${Math.max(1, Math.round(seconds))} s`
}

function pace(lag, gain) {
  if (!lag) return "caught up"
  if (gain > 0) return `records, caught up in ${span(lag / gain)}`
  return gain < 0 ? "records, and the lag grows" : "records"
}

function show_gauges(gauges, counters, seconds) {
  for (const element of document.querySelectorAll("[data-gauge]")) {
    const value = gauges[element.dataset.gauge]
    element.textContent = value === undefined ? "–" : Math.round(value).toLocaleString("en")
    element.classList.remove("old")
    element.title = ""
  }
  for (const chart of document.querySelectorAll("[data-trend]")) draw(chart, chart.dataset.trend, gauges[chart.dataset.trend])
  for (const element of document.querySelectorAll("[data-pace]"))
    element.textContent = pace(gauges.lag, (counters.done - last.done - counters.written + last.written) / seconds)
}

function show(counters, seconds) {
  for (const element of document.querySelectorAll("[data-rate]")) {
    const name = element.dataset.rate
    const known = Object.hasOwn(counters, name) && Object.hasOwn(last, name) // else some leader did not respond
    element.textContent = known ? rate(Math.max(0, (counters[name] - last[name]) / seconds), element.dataset.unit) : "–"
    element.classList.remove("old")
    element.title = ""
  }
  for (const chart of document.querySelectorAll("[data-spark]")) {
    const name = chart.dataset.spark
    if (Object.hasOwn(counters, name)) draw(chart, name, Math.max(0, (counters[name] - last[name]) / seconds))
  }
}

const line = document.querySelector("[data-stale]")

// One line at the top says that nothing moves any more, and why.
function tell(text) {
  line.textContent = text
  line.hidden = !text
}

async function look(url) {
  let at = performance.now()
  let read = 0
  let brokers = ""
  let reached = false
  for (;;) {
    if (document.visibilityState === "visible") {
      try {
        reached = false
        const response = await fetch(url, { headers: { accept: "application/json" }, redirect: "manual" })
        reached = true
        if (response.status === 401 || response.type === "opaqueredirect") return tell("Your login has ended. Load the page again.")
        if (response.status === 403) return
        if (!response.ok) throw new Error(`status ${response.status}`)
        const { counters, gauges, at_s, summed } = await response.json()
        tell("")
        if (!counters) return
        if (last && at_s > read) {
          show(String(summed) === brokers ? counters : {}, at_s - read) // a sum of other brokers leaps
          if (gauges) show_gauges(gauges, counters, at_s - read)
        }
        if (at_s !== read) at = performance.now()
        last = counters
        brokers = String(summed)
        read = at_s
      } catch {
        const age = Math.round((performance.now() - at) / 1000)
        for (const element of document.querySelectorAll("[data-rate], [data-gauge]")) {
          element.classList.add("old")
          element.title = `${age} s old`
        }
        tell(`${reached ? "The brokers give no numbers now" : "The server of this console does not respond"}. What you see is ${age} s old.`)
      }
    }
    await new Promise((done) => setTimeout(done, LIVE_MS))
  }
}

const live = document.querySelector("[data-live]")
if (live && live.dataset.live) look(live.dataset.live)

// --- messages as they come

const ROWS_MAX = 500

function follow(place) {
  const body = document.querySelector("table.messages tbody")
  const state = place.querySelector("[data-state]")
  const more = place.querySelector("[data-more]")
  let source = null
  let last_id = ""
  let ended = false
  let waiting = []
  const at_end = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 120
  const add = (row) => {
    body.append(row)
    while (body.children.length > ROWS_MAX) body.firstElementChild.remove()
  }
  const show = () => {
    waiting.forEach(add)
    waiting = []
    more.hidden = true
    scrollTo(0, document.documentElement.scrollHeight)
  }
  const come = (rows) => {
    waiting.push(...rows)
    if (waiting.length > ROWS_MAX) waiting = waiting.slice(-ROWS_MAX)
    if (at_end()) return show()
    more.textContent = `${waiting.length} new`
    more.hidden = false
  }
  const close = () => {
    source?.close()
    source = null
  }
  const end = (text) => {
    close()
    ended = true
    state.textContent = text
  }
  more.addEventListener("click", show)
  const rows_of = (event) => {
    last_id = event.lastEventId
    const made = document.createElement("template")
    made.innerHTML = event.data // a row of the server's template, which escapes all text of others
    come([...made.content.querySelectorAll("tr")])
  }
  const left_out = (event) => {
    const row = document.createElement("tr")
    const cell = row.appendChild(document.createElement("td"))
    cell.colSpan = 5
    cell.className = "quiet full"
    cell.textContent = `${event.data} offsets left out: records come faster than a page shows them.`
    come([row])
  }
  const open = () => {
    const own = (source = new EventSource(place.dataset.follow + (last_id && `&after=${last_id}`)))
    own.onopen = () => (state.textContent = "New records appear here.")
    own.onmessage = rows_of
    own.addEventListener("left-out", left_out)
    own.addEventListener("ended", (event) => end(event.data))
    own.onerror = () => {
      if (own.readyState === EventSource.CLOSED) end("No new messages are shown any more. Load it again.")
      else state.textContent = "The server does not respond. Trying again."
    }
  }
  // A browser has six connections to a server for all of its tabs, so a hidden tab keeps none.
  const turn = () => {
    if (document.visibilityState === "hidden") close()
    else if (!source && !ended) open()
  }
  document.addEventListener("visibilitychange", turn)
  turn()
}

const followed = document.querySelector("[data-follow]")
if (followed) follow(followed)
