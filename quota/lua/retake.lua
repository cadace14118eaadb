-- KEYS: open, held, lapsed, limits. ARGV: base of the keys, id, lease in
-- microseconds; for each limit its terms, the amount and the window in which it was
-- reserved. Takes a reservation again that its gateway still has, whether there is
-- room or not. Gives 1 if it was not there.

lapse(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
if redis.call('ZSCORE', KEYS[1], ARGV[2]) then return 0 end
redis.call('ZREM', KEYS[3], ARGV[2])
local taken = {}
for i = 1, #KEYS - 3 do
  local id, kind, amount, p, at = terms(3, i, 2)
  local l, n, window = read(KEYS[i + 3], kind, amount, p), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if kind == 's' then window = math.min(window, l.w) end
  if not (kind == 's' and l.w - window > SLOTS or kind == 'c' and l.w ~= window) then
    if kind == 's' then redis.call('HINCRBYFLOAT', l.key, slot(l, window), n) end
    l.u = math.min(l.u + n, 9007199254740992)
  end
  l.r = l.r + n
  write(l)
  taken[i] = id .. ',' .. kind .. ',' .. string.format('%.0f', n) .. ',' .. string.format('%.0f', window)
end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], table.concat(taken, ';'))
redis.call('PEXPIRE', KEYS[1], KEEP)
redis.call('PEXPIRE', KEYS[2], KEEP)
return 1
