// How a run goes, in the browser's title; and a notification of its end, where somebody wants that.
// Asked while a run is under way also behind other windows, where browsers slow clocks down.
(() => {
  const kept = 'finetune-notify';
  let run = '';
  const wanted = () => window.Notification?.permission === 'granted' && localStorage[kept] === 'yes';
  const draw = () => {
    const button = document.querySelector('#notify'), pressed = String(wanted());
    if (button && button.ariaPressed !== pressed) button.ariaPressed = pressed;
  };
  const tell = ({title, name}) => {
    const note = new Notification(title, {body: name, icon: 'favicon.ico'});
    note.onclick = () => { window.focus(); note.close(); };
  };
  const ask = async () => {
    const answer = await fetch(`finetune/news/${run}`);
    const news = answer.status === 200 ? await answer.json() : {run: '', ended: true, queue: 'none'};
    if (news.queue) dispatchEvent(new CustomEvent('finetune-queue', {detail: news.queue}));
    if (news.title) document.title = `${news.title} \u00b7 Finetune`;
    if (news.run && news.ended && wanted()) tell(news);
    run = news.ended ? '' : news.run;
  };
  const repeat = async () => {
    if (run || !document.hidden) await ask().catch(() => {}); // the live view says that it is gone
    setTimeout(repeat, 3000);
  };
  setTimeout(repeat, 3000);
  document.addEventListener('click', async (event) => {
    const button = event.target.closest?.('#notify');
    if (!button) return;
    localStorage[kept] = wanted() ? 'no' : 'yes';
    if (localStorage[kept] === 'yes' && await window.Notification?.requestPermission() !== 'granted')
      button.title = button.ariaLabel = button.querySelector('span').textContent = button.dataset.denied;
    draw();
  });
  new MutationObserver(draw).observe(document.documentElement, {childList: true, subtree: true});
})();
