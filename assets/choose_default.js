// Train. Chooses what can run, once the Hub has answered; whoever has chosen meanwhile, or trained
// before, keeps it. In the browser: an answer of the server's would come after what is chosen
// meanwhile.
(hub, kept, dataset, checkpoint) => {
  const [blank, better] = DEFAULTS;
  const free = !kept && dataset === blank[0] && checkpoint === blank[1];
  const [pairs, base] = free && hub.includes('ANSWERS') ? better : [dataset, checkpoint];
  return [pairs, base, pairs];
}
