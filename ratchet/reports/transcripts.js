"use strict";
// The browser of transcripts. Text enters the page as text only, never as markup.
(() => {
  const byId = (id) => document.getElementById(id);
  const files = [...document.querySelectorAll(".t-data")];
  const [runs, arms, shown, search, list, reading, note] =
    ["t-run", "t-arm", "t-file", "t-search", "t-list", "t-reading", "t-note"].map(byId);
  const buttons = [...document.querySelectorAll(".t-filters button")];
  const VERDICTS = { right: "✓", wrong: "✗", undecided: "–" };
  const DECISIONS = ["Reject", "Accept", "No decision"];
  const COLOURS = 8, LETTERS = "AB", SIDE = 220, MARGIN = 26, NODE = 10, RING = 4;
  const unpacked = new Map();
  let rollouts = [], start = 0, hasStances = false, labels = new Map(), filter = "all", selected = null, request = 0;

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  async function unpack(file) {
    if (!unpacked.has(file.id)) {
      const bytes = Uint8Array.from(atob(file.textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      unpacked.set(file.id, JSON.parse(await new Response(stream).text()));
    }
    return unpacked.get(file.id);
  }

  // A rollout's address on this page: run, arm, file, datapoint, rollout.
  const MARK = "#transcript=";
  const addressOf = (rollout) => MARK + [runs.value, arms.value, shown.value, rollout.datapoint_id, rollout.rollout].map(encodeURIComponent).join("/");

  async function follow() {
    if (!location.hash.startsWith(MARK) || (selected && addressOf(selected) === location.hash)) return;
    const [run, arm, name, datapoint, number] = location.hash.slice(MARK.length).split("/").map(decodeURIComponent);
    const file = files.find((one) => of(one).run === run && of(one).arm === arm && of(one).name === name);
    [filter, search.value] = ["all", ""];
    for (const [select, value] of file ? [[runs, run], [arms, arm], [shown, name]] : []) { select.value = value; offer(); }
    await open();
    const rollout = file && rollouts.find((one) => String(one.datapoint_id) === datapoint && String(one.rollout) === number);
    byId("transcripts").scrollIntoView();
    if (rollout) return choose(rollout, true);
    note.textContent ||= `This page has no transcript ${location.hash.slice(MARK.length)}.`;
    note.hidden = false;
  }

  const isTask = (rollout) => !("decision" in rollout); // answered, rather than decided on
  const verdict = (rollout) =>
    rollout.decision === 2 || rollout.correct === null ? "undecided" : rollout.correct ? "right" : "wrong";
  const passes = (rollout, name) =>
    name === "all" || (name === "failed" ? rollout.always_failed : verdict(rollout) === name);
  function searched(rollout) {
    const said = rollout.rounds.flatMap((round) =>
      [...round.messages.map((message) => message.text), ...Object.values(round.raw), ...Object.values(round.thinking || {})]);
    return [rollout.question, rollout.solution, ...said].filter(Boolean).join("\n").toLowerCase();
  }
  const wanted = () => search.value.trim().toLowerCase();
  const found = (rollout) => !wanted() || searched(rollout).includes(wanted());

  function options(select, values, titles = values) {
    const kept = select.value;
    select.replaceChildren(...values.map((value, i) => new Option(titles[i], value)));
    if (values.includes(kept)) select.value = kept;
  }
  const of = (file) => file.dataset;
  const unique = (values) => [...new Set(values)];
  function offer() {
    options(runs, unique(files.map((file) => of(file).run)));
    const inRun = files.filter((file) => of(file).run === runs.value);
    options(arms, unique(inRun.map((file) => of(file).arm)));
    const inArm = inRun.filter((file) => of(file).arm === arms.value);
    const titles = inArm.map((file) =>
      `${of(file).title} · ${of(file).told}`);
    options(shown, inArm.map((file) => of(file).name), titles);
  }

  async function open() {
    const turn = ++request;
    const file = files.find((one) =>
      of(one).run === runs.value && of(one).arm === arms.value && of(one).name === shown.value);
    const isThere = file.textContent.length > 0;
    note.hidden = isThere;
    note.textContent = isThere ? "" :
      `Left out of this page for its size; see transcripts/${of(file).arm}/${of(file).name}.jsonl in the run's folder.`;
    const content = isThere ? await unpack(file) : [];
    if (turn !== request) return; // another file was chosen meanwhile
    rollouts = content;
    start = commonStart(rollouts.map((one) => one.question));
    hasStances = new Set(rollouts.map((one) => one.prover_stance)).size > 1;
    labels = new Map([[0, "to reject is right"], [1, "to accept is right"], ...rollouts.filter((one) => one.truth).map((one) => [one.y, one.truth])]);
    selected = null;
    refresh();
  }

  // A task is answered: it is right or wrong, or has a score alone, which no filter parts.
  function says(name) {
    if (name === "all" || !rollouts.length || !rollouts.every(isTask)) return true;
    if (rollouts.every((one) => one.correct === null)) return false;
    return name !== "undecided" || rollouts.some((one) => one.correct === null);
  }

  function refresh() {
    const matching = rollouts.filter(found);
    if (!says(filter)) filter = "all";
    for (const button of buttons) {
      const name = button.dataset.filter;
      button.hidden = !says(name);
      button.setAttribute("aria-pressed", String(name === filter));
      button.querySelector("i").textContent = matching.filter((one) => passes(one, name)).length;
    }
    const visible = matching.filter((rollout) => passes(rollout, filter))
      .sort((a, b) => a.datapoint_id - b.datapoint_id || a.rollout - b.rollout);
    const repeated = new Map(), solved = new Map();
    const count = (map, one) => map.set(one.datapoint_id, (map.get(one.datapoint_id) || 0) + 1);
    rollouts.forEach((one) => { count(repeated, one); if (one.correct) count(solved, one); });
    const rows = [];
    let datapoint = null;
    for (const rollout of visible) {
      if (repeated.get(rollout.datapoint_id) > 1 && rollout.datapoint_id !== datapoint) {
        const told = rollout.correct === null ? `${repeated.get(rollout.datapoint_id)} answers`
          : `${solved.get(rollout.datapoint_id) || 0} of ${repeated.get(rollout.datapoint_id)} right`;
        rows.push(element("li", { className: "t-group", textContent: `${isTask(rollout) ? "Task" : "Datapoint"} ${rollout.datapoint_id}, ${told}` }));
      }
      datapoint = rollout.datapoint_id;
      rows.push(row(rollout));
    }
    if (!visible.length) rows.push(element("li", { className: "t-group", textContent: "No rollout matches." }));
    list.replaceChildren(...rows);
    const still = visible.includes(selected) ? selected : visible[0] || null;
    choose(still, false);
  }

  // What all questions begin with tells them not apart.
  function commonStart(texts) {
    if (new Set(texts).size < 2) return 0;
    let length = 0;
    while (texts.every((text) => length < text.length && text[length] === texts[0][length])) length += 1;
    const broken = Math.max(...[" ", "\n"].map((mark) => texts[0].lastIndexOf(mark, length - 1)));
    return length > 24 ? broken + 1 : 0;
  }
  const inOneLine = (rollout) => rollout.question.slice(start).replace(/\s*\n\s*/g, " · ");

  // A group's answers have their question in common.
  const replyOf = (rollout) => !isTask(rollout) ? ""
    : ` → ${(rollout.rounds.at(-1)?.messages.at(-1)?.text || "").replace(/\s*\n\s*/g, " · ")}`;
  const inShort = (value) => Number(value.toFixed(3));
  const paid = (rollout) => Object.values(rollout.rewards).map(inShort).join(", ");

  function row(rollout) {
    const state = verdict(rollout);
    const made = element("li", {},
      element("span", { className: `t-mark ${state}`, textContent: VERDICTS[state], title: state }),
      element("span", { className: "t-what", textContent: inOneLine(rollout) + replyOf(rollout) }),
      element("span", { className: "t-id", textContent: isTask(rollout) ? paid(rollout) : `#${rollout.datapoint_id}` }));
    made.setAttribute("role", "option");
    made.rollout = rollout;
    made.addEventListener("click", () => choose(rollout, true));
    return made;
  }

  function choose(rollout, scroll) {
    selected = rollout;
    for (const one of list.children) {
      if (one.rollout) one.setAttribute("aria-selected", String(one.rollout === rollout));
      if (one.rollout === rollout && rollout && scroll) one.scrollIntoView({ block: "nearest" });
    }
    reading.replaceChildren(...(rollout ? page(rollout) : [element("p", { className: "t-empty", textContent: "Nothing to read." })]));
    reading.scrollTop = 0;
    if (rollout) markFound(reading);
  }

  function page(rollout) {
    const state = verdict(rollout);
    if (isTask(rollout)) return taskPage(rollout, state);
    const truth = labels.get(rollout.y);
    const rewards = Object.entries(rollout.rewards).map(([agent, value]) => `${agent} ${inShort(value)}`).join(", ");
    const stance = !hasStances ? null : ` · prover’s stance: ${labels.get(rollout.prover_stance)}`;
    return [
      element("h3", {},
        element("span", { className: `t-mark ${state}`, textContent: `${VERDICTS[state]} ` }),
        `${DECISIONS[rollout.decision]} – ${truth}`, linkTo(rollout)),
      element("p", { className: "meta" }, `Datapoint ${rollout.datapoint_id} · rollout ${rollout.rollout} · rewards: ${rewards}`, stance),
      rollout.graphs ? element("p", { className: "meta", textContent: "Filled: pointed at in this round. Ringed: in an earlier one." })
      : element("div", { className: "t-task" },
        element("div", {}, element("h4", { textContent: "Question" }), element("p", { className: "t-text", textContent: rollout.question })),
        element("div", {}, element("h4", { textContent: "Solution" }), element("pre", { textContent: rollout.solution }))),
      ...rollout.rounds.map((round, place) => roundOf(rollout, round, place)),
    ];
  }

  const OUTCOMES = { right: "Right", wrong: "Wrong", undecided: "Scored" };
  const ENDS = { length: "cut off at its most tokens", environment: "ended by its environment" };

  function taskPage(rollout, state) {
    const seats = Object.entries(rollout.rewards);
    const isMatch = rollout.rounds.some((round) => round.messages.some((message) => message.channel !== "main"));
    const rewards = seats.length > 1 ? `rewards ${seats.map(([seat, value]) => `${seat} ${inShort(value)}`).join(", ")}` : `reward ${paid(rollout)}`;
    const parts = Object.entries(rollout.scores).map(([name, value]) => `${name} ${inShort(value)}`).join(", ");
    const about = [`${isMatch ? "Match" : "Task"} ${rollout.datapoint_id}`, `${isMatch ? "rollout" : "answer"} ${rollout.rollout}`, parts && `made of ${parts}`, ENDS[rollout.finish_reason]];
    return [
      element("h3", {},
        element("span", { className: `t-mark ${state}`, textContent: `${VERDICTS[state]} ` }),
        `${OUTCOMES[state]} – ${rewards}`, linkTo(rollout)),
      element("p", { className: "meta", textContent: about.filter(Boolean).join(" · ") }),
      ...(isMatch ? [] : [element("div", { className: "t-task" },
        element("div", {}, element("h4", { textContent: "Prompt" }), element("p", { className: "t-text", textContent: rollout.question })),
        element("div", {}, element("h4", { textContent: "Right answer" }), element("pre", { textContent: rollout.solution || "–" })))]),
      ...(isMatch ? [seatColumns(rollout)]
        : rollout.rounds.map((round, place) => roundOf(rollout, round, place, rollout.rounds.length > 1 ? `Turn ${round.round + 1}` : "Reply"))),
    ];
  }

  // A match: a column for each seat, a row for the seats' first turns, one for their second, and so on.
  function seatColumns(rollout) {
    const seats = Object.keys(rollout.rewards);
    const made = element("div", { className: "t-seats" });
    made.style.setProperty("--seats", seats.length);
    made.append(...seats.map((seat, place) => seatCell(place, element("div", { className: "t-who" }, seat,
      element("span", { textContent: rollout.roles?.[seat] ? ` as ${rollout.roles[seat]}` : "" })))));
    for (const round of rollout.rounds) {
      made.append(...seats.map((seat, place) => seatCell(place, ...turnOf(round, seat))));
    }
    return made;
  }

  function seatCell(place, ...content) {
    const made = element("div", { className: "t-seat" }, ...content);
    made.style.setProperty("--dot", `var(--c${place % COLOURS})`);
    return made;
  }

  function turnOf(round, seat) {
    const view = round.messages.filter((message) => message.channel === seat).map((message) => message.text).join("\n");
    const replies = round.messages.filter((message) => message.agent === seat);
    return [
      view && element("details", {}, element("summary", { textContent: "View" }), element("pre", { textContent: view })),
      ...replies.flatMap((message) => [element("p", { className: "t-said", textContent: message.text }), creditOf(message)]),
    ].filter(Boolean);
  }

  const creditOf = (message) => message.credit === undefined ? null : element("div", {
    className: "t-credit", textContent: `credit ${message.credit > 0 ? "+" : ""}${inShort(message.credit)}`,
    title: "The reward minus the mean of the other replies that it is compared with" });

  function linkTo(rollout) {
    const link = element("a", { className: "t-link", href: addressOf(rollout), title: "The address of this transcript; a click copies it", textContent: "Link" });
    link.addEventListener("click", async () => {
      await navigator.clipboard?.writeText(link.href);
      link.textContent = "Link copied";
    });
    return link;
  }

  function roundOf(rollout, round, place, title = `Round ${round.round}`) {
    const agents = unique([...round.messages.map((message) => message.agent), ...Object.keys(round.raw), ...Object.keys(round.decision)]);
    return element("section", { className: "t-round" }, element("h4", { textContent: title }),
      rollout.graphs ? picture(rollout, place) : null,
      ...agents.map((agent) => said(round, agent)));
  }

  const colourOf = (agent) =>
    agent.includes("verifier") ? "var(--c0)" : agent.endsWith("1") ? "var(--c3)" : "var(--c1)";

  function drawn(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Both graphs as they stand after a round: what was pointed at in it is filled, earlier ringed.
  function picture(rollout, place) {
    const marks = new Map();
    rollout.rounds.slice(0, place + 1).forEach((round, at) => round.messages.forEach((message) =>
      (message.marks || []).forEach(([graph, node]) => {
        const key = `${graph} ${node}`;
        marks.set(key, [...(marks.get(key) || []), { agent: message.agent, round: round.round, now: at === place }]);
      })));
    const width = 2 * SIDE + 4 * MARGIN, height = SIDE + 2 * MARGIN;
    const svg = drawn("svg", { class: "t-graphs", viewBox: `0 0 ${width} ${height}`, role: "img" },
      drawn("title", {}, `The two graphs after round ${rollout.rounds[place].round}`));
    rollout.graphs.forEach((graph, which) => {
      const left = MARGIN + which * (SIDE + 2 * MARGIN);
      const at = graph.nodes.map((point) => point && [left + SIDE * point[0], MARGIN + SIDE * (1 - point[1])]);
      svg.append(drawn("text", { class: "t-letter", x: left - MARGIN + 6, y: 16 }, LETTERS[which]));
      svg.append(...graph.edges.map(([a, b]) =>
        drawn("line", { x1: at[a][0], y1: at[a][1], x2: at[b][0], y2: at[b][1] })));
      svg.append(...at.flatMap((point, node) => point ? [nodeOf(point, node, marks.get(`${which} ${node}`) || [])] : []));
    });
    return svg;
  }

  function nodeOf([x, y], node, marks) {
    const now = marks.filter((mark) => mark.now);
    const group = drawn("g", { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    const rings = unique(marks.map((mark) => mark.agent)).filter((agent) => agent !== (now[0] || {}).agent);
    rings.reverse().forEach((agent, i) => group.append(drawn("circle",
      { class: "t-ring", r: NODE + RING * (rings.length - i) - 1, style: `--dot: ${colourOf(agent)}` })));
    const dot = now.length ? `--dot: ${colourOf(now[0].agent)}` : "";
    group.append(drawn("circle", { class: now.length ? "t-node now" : "t-node", r: NODE, style: dot }));
    group.append(drawn("text", { class: now.length ? "now" : "", dy: "0.35em" }, String(node)));
    const said = marks.map((mark) => `${mark.agent} in round ${mark.round}`);
    if (said.length) group.append(drawn("title", {}, said.join(", ")));
    return group;
  }

  function said(round, agent) {
    const own = round.messages.filter((message) => message.agent === agent);
    const decision = round.decision[agent];
    const made = element("div", { className: "t-message" });
    made.style.setProperty("--dot", colourOf(agent));
    for (const message of own) {
      made.append(
        element("div", { className: "t-who" }, agent, element("span", { textContent: message.channel === "main" ? "" : ` in ${message.channel}` })),
        element("p", { className: "t-said", textContent: message.text }),
        ...[creditOf(message)].filter(Boolean));
    }
    if (!own.length) made.append(element("div", { className: "t-who", textContent: agent }));
    const [thinking, invalid] = [round.thinking?.[agent], round.invalid?.[agent]];
    if (invalid) made.append(element("div", { className: "t-invalid", textContent: `Could not be read: ${invalid}` }));
    if (decision === 0 || decision === 1) made.append(element("div", { className: "t-decision", textContent: DECISIONS[decision] }));
    if (thinking) {
      made.append(element("details", {}, element("summary", { textContent: "Thinking" }), element("pre", { textContent: thinking })));
    }
    if (round.raw[agent]) {
      made.append(element("details", {}, element("summary", { textContent: "As the model wrote it" }), element("pre", { textContent: round.raw[agent] })));
    }
    return made;
  }

  function markFound(root) {
    const words = wanted();
    if (!words) return;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) nodes.push(walker.currentNode);
    for (const node of nodes) {
      const text = node.data, lower = text.toLowerCase(), pieces = [];
      let from = 0;
      for (let at = lower.indexOf(words); at >= 0; at = lower.indexOf(words, from)) {
        pieces.push(text.slice(from, at), element("mark", { textContent: text.slice(at, at + words.length) }));
        node.parentElement.closest("details")?.setAttribute("open", "");
        from = at + words.length;
      }
      if (pieces.length) node.replaceWith(...pieces, text.slice(from));
    }
  }

  function step(by) {
    const rows = [...list.children].filter((one) => one.rollout);
    const at = rows.findIndex((one) => one.rollout === selected);
    const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
    if (next) choose(next.rollout, true);
  }

  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (by) { event.preventDefault(); step(by); }
  });
  buttons.forEach((button) => button.addEventListener("click", () => { filter = button.dataset.filter; refresh(); }));
  search.addEventListener("input", refresh);
  [runs, arms].forEach((select) => select.addEventListener("change", () => { offer(); open(); }));
  shown.addEventListener("change", open);
  offer();
  shown.selectedIndex = shown.options.length - 1; // the latest says most
  addEventListener("hashchange", follow);
  if (location.hash.startsWith(MARK)) follow(); else open();
})();
